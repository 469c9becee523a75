"""The queues of all models: what waits in them together, and which model runs next on a device.

Among models whose most urgent sequences are of one priority, the model that has used the devices least goes first. A
model with much work then delays another model by one batch, not by its whole queue.
"""

from collections.abc import Iterator

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.queued_request import Sequence
from headwaiter_server.scheduling.worker import Worker


class ModelQueues(list[ModelQueue]):
    """The queues of all models."""

    def __init__(self) -> None:
        """Start without a model."""
        super().__init__()
        # The virtual time: the device seconds that the latest model had used when its batch started.
        self._used_s = 0.0

    @property
    def waiting(self) -> Iterator[ModelQueue]:
        """The queues in which sequences wait."""
        return (queue for queue in self if queue.pending)

    def want(self, worker: Worker) -> bool:
        """Return whether a worker could run a waiting sequence."""
        return any(worker in queue.sessions for queue in self.waiting)

    def others_s(self, queue: ModelQueue, own_s: float, fair_start_s: float) -> Iterator[float]:
        """Yield the seconds that other models take for sequences of earlier fair starts, each at most `own_s`.

        The first number is an upper bound. The time to compute the second one grows with the number of models.
        """
        yield own_s * (len(self) - 1)
        if len(self) > 1:
            others = (each.backlog() for each in self.waiting if each is not queue)
            yield sum(min(own_s, backlog.ahead_s(fair_start_s)) for backlog in others)

    def note_arrival(self, queue: ModelQueue) -> None:
        """Update a queue before a request enters it: the model gets no credit for the time without work."""
        if not queue.pending:
            queue.used_s = max(queue.used_s, self._used_s)

    def next(self, worker: Worker, now_s: float) -> ModelQueue:
        """Return the queue of the next batch of a worker, which the queues want.

        The first criterion is priority: bulk work yields to interactive work until its fair start. The second criterion
        is the time that the models have used: the model with the least goes first. The third is the fair start.
        """

        def order(queue: ModelQueue) -> tuple[bool, float, float]:
            leader = queue.leader
            return _yields(leader, now_s), queue.used_s, leader.fair_start_s

        return min((queue for queue in self.waiting if worker in queue.sessions), key=order)

    def note_start(self, queue: ModelQueue, now_s: float) -> None:
        """Note that a batch of a model starts; no model gets credit for the time in which its bulk work yields."""
        self._used_s = max(self._used_s, queue.used_s)
        for each in self.waiting:
            if each.used_s < self._used_s and _yields(each.leader, now_s):
                each.used_s = self._used_s


def _yields(leader: Sequence, now_s: float) -> bool:
    """Return whether the work that a sequence leads yields to other models, as bulk work does before its fair start."""
    return leader.priority > Priority.INTERACTIVE and leader.fair_start_s > now_s
