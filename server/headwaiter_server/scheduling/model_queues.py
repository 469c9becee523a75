"""The queues of all models, and the order in which the models take turns on the devices.

The order is start-time fair queuing (Goyal et al. 1996): among the models that wait, the model that has used the
devices least goes first. A model with much work then delays another model by one batch, not by its whole queue.
"""

from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.worker import Worker


class ModelQueues(list[ModelQueue]):
    """The queues of all models."""

    def __init__(self) -> None:
        """Start without a model."""
        super().__init__()
        # The virtual time: the device seconds that the latest model had used when its turn began.
        self._used_s = 0.0

    @property
    def waiting(self) -> list[ModelQueue]:
        """The queues in which sequences wait."""
        return [queue for queue in self if queue.pending]

    @property
    def wanted_workers(self) -> set[Worker]:
        """The workers that could run a waiting sequence."""
        return {worker for queue in self.waiting for worker in queue.sessions}

    def note_arrival(self, queue: ModelQueue) -> None:
        """Update a queue before a request enters it: the model gets no credit for the time without work."""
        if not queue.pending:
            queue.used_s = max(queue.used_s, self._used_s)

    def next(self, worker: Worker, now_s: float) -> ModelQueue:
        """Return the queue of the next batch of a worker, one of `wanted_workers`.

        The first criterion is priority: bulk work yields to interactive work until its fair start. The second criterion
        is the time that the models have used: the model with the least goes first. The third is the fair start.
        """

        def order(queue: ModelQueue) -> tuple[bool, float, float]:
            return queue.yields(now_s), queue.used_s, next(queue.pending.by_fair_start()).fair_start_s

        return min((queue for queue in self.waiting if worker in queue.sessions), key=order)

    def note_turn(self, queue: ModelQueue, now_s: float) -> None:
        """Begin the turn of a model; no model gets credit for the time in which its bulk work yields."""
        self._used_s = max(self._used_s, queue.used_s)
        for other in self.waiting:
            if other.yields(now_s):
                other.used_s = max(other.used_s, self._used_s)
