"""The queues of all models, and the order in which the models take turns on the devices.

The order is start-time fair queuing (Goyal et al. 1996): among the models that wait, the model that has used the
devices least goes first. A model with much work then delays another model by one batch, not by its whole queue.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedList

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.worker import Worker


class _Place(NamedTuple):
    """The place of a queue among those that wait: bulk work last; the number decides between equals."""

    bulk: bool
    used_s: float
    fair_start_s: float
    number: int

    def yields(self, now_s: float) -> bool:
        """Return whether the waiting work yields to other models, as bulk work does before its fair start."""
        return self.bulk and self.fair_start_s > now_s


class ModelQueues(list[ModelQueue]):
    """The queues of all models.

    What is known about the waiting queues together is kept, and brought up to date with the queues that have changed,
    so that an arrival and a turn of the loop take the same time for one model and for a hundred.
    """

    def __init__(self) -> None:
        """Start without a model."""
        super().__init__()
        # The virtual time: the device seconds that the latest model had used when its turn began.
        self._used_s = 0.0
        self._changed = set[ModelQueue]()
        self._numbers: dict[ModelQueue, int] = {}
        self._places: dict[ModelQueue, _Place] = {}
        self._in_order = SortedList()
        # For each worker, the number of waiting queues whose model it can run.
        self._wanted = Counter[Worker]()
        # The seconds that a device takes for all that waits in each queue.
        self._work_s = np.zeros(0)

    def append(self, queue: ModelQueue) -> None:
        """Add the queue of a new model."""
        super().append(queue)
        self._renumber()

    def remove(self, queue: ModelQueue) -> None:
        """Remove the queue of a model, in which nothing waits."""
        super().remove(queue)
        self._renumber()

    @property
    def waiting(self) -> Collection[ModelQueue]:
        """The queues in which sequences wait."""
        self._update()
        return self._places.keys()

    @property
    def wanted_workers(self) -> Collection[Worker]:
        """The workers that could run a waiting sequence."""
        self._update()
        return [worker for worker, queues in self._wanted.items() if queues]

    def others_s(self, queue: ModelQueue, own_s: float, fair_start_s: float) -> Iterator[float]:
        """Yield the seconds that other models take for sequences of earlier fair starts, each at most `own_s`.

        The time to compute the last number grows with the number of models; those before it are at least as large.
        """
        yield own_s * (len(self) - 1)
        if len(self) > 1:
            self._update()
            work_s = self._work_s
            yield float(np.minimum(work_s, own_s).sum()) - min(own_s, float(work_s[self._numbers[queue]]))
            yield from self.others_exactly_s(queue, own_s, fair_start_s)

    def others_exactly_s(self, queue: ModelQueue, own_s: float, fair_start_s: float) -> Iterator[float]:
        """Yield the last number of `others_s`; any thread may call this."""
        yield sum(min(own_s, other.backlog.ahead_s(fair_start_s)) for other in self if other is not queue)

    def note_arrival(self, queue: ModelQueue) -> None:
        """Update a queue before a request enters it: the model gets no credit for the time without work."""
        if not queue.pending:
            queue.used_s = max(queue.used_s, self._used_s)

    def next(self, worker: Worker, now_s: float) -> ModelQueue:
        """Return the queue of the next batch of a worker, one of `wanted_workers`.

        The first criterion is priority: bulk work yields to interactive work until its fair start. The second criterion
        is the time that the models have used: the model with the least goes first. The third is the fair start.
        """
        self._update()
        # Only bulk work may yield, so the first place of interactive work goes before all others of interactive work.
        earliest = next(place for place in self._in_order if worker in self[place.number].sessions)
        bulk = (place for place in self._bulk() if worker in self[place.number].sessions)
        first: _Place = min(chain([earliest], bulk), key=lambda place: (place.yields(now_s), *place[1:]))
        return self[first.number]

    def note_turn(self, queue: ModelQueue, now_s: float) -> None:
        """Begin the turn of a model; no model gets credit for the time in which its bulk work yields."""
        self._used_s = max(self._used_s, queue.used_s)
        self._update()
        for place in self._bulk():
            if place.yields(now_s) and place.used_s < self._used_s:
                self[place.number].used_s = self._used_s

    def _bulk(self) -> Iterable[_Place]:
        """Return the places of the queues whose most urgent sequence is bulk work."""
        places: Iterable[_Place] = self._in_order.irange(minimum=(True,))
        return places

    def _renumber(self) -> None:
        """Start again after a model was added or removed."""
        self._numbers = {queue: number for number, queue in enumerate(self)}
        self._places, self._in_order, self._wanted = {}, SortedList(), Counter()
        self._work_s = np.zeros(len(self))
        self._changed = set(self)
        for queue in self:
            queue.pending.on_change = partial(self._changed.add, queue)

    def _update(self) -> None:
        """Bring up to date what depends on the queues that have changed."""
        while self._changed:
            queue = self._changed.pop()
            number = self._numbers[queue]
            if len(self) > 1:
                self._work_s[number] = queue.backlog.all_s()
            leader, before, place = queue.leader, self._places.get(queue), None
            if leader:
                place = _Place(leader.priority is Priority.BULK, queue.used_s, leader.fair_start_s, number)
            if place == before:
                continue
            if before:
                del self._places[queue]
                self._in_order.remove(before)
                self._wanted.subtract(queue.sessions.keys())
            if place:
                self._places[queue] = place
                self._in_order.add(place)
                self._wanted.update(queue.sessions.keys())
