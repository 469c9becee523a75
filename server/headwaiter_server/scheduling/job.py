"""A request split into sequences, the unit of work, and joined again when the last has its answer."""

from asyncio import Future
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.errors import HeadwaiterError


class Priority(IntEnum):
    """Whose sequences go first; the order is that of their values."""

    INTERACTIVE = 0
    BULK = 1


# A sequence is due this long after it came, or so many times the seconds of its request's work where that is longer.
# Nothing that came later than that leads a batch before it, so this is the age bound.
PATIENCE_S = {Priority.INTERACTIVE: 5.0, Priority.BULK: 20.0}
_PATIENCE = 10.0
# As long as nobody becomes late by it, it is a request's turn when it has waited for so many times the seconds of its
# own work: who asks for little waits little, also behind who asks for much. More of it would help them little, and keep
# those who ask for much waiting where the server is busy; never more than the patience above.
_TURN = 4.0


# Classes made for each sequence, request or batch are not frozen, here and elsewhere: a frozen one makes a call to set
# each field.
@dataclass(eq=False, slots=True)
class Stamps:
    """The times of one batch, in seconds.

    Attributes:
        assemble_s: how long it took to put together.
        compute_s: how long it ran.
        computed_s: when it was done, on the scheduler's clock.
        device_s: how much later that was than the end of the batch before, if it waited for that; else than its start.
    """

    assemble_s: float
    compute_s: float
    computed_s: float
    device_s: float


@dataclass(eq=False, slots=True)
class Outcome:
    """The answer to a request.

    Attributes:
        pooled: one vector [width] a sequence but those that failed, not scaled to unit length; None for a model without
            pooling, or where all failed.
        hidden: rows [n_i, width] of each sequence but those that failed; None unless asked for.
        assemble_s: time spent packing its batches.
        compute_s: time its batches ran.
        computed_s: when the last of them was done, on the scheduler's clock; None where none ran.
        batches: in how many batches its sequences ran.
        failures: why sequences have no result, by index; of a request that shall be answered all the same.
    """

    pooled: list[NDArray[np.float32]] | None
    hidden: list[NDArray[np.generic]] | None
    assemble_s: float
    compute_s: float
    computed_s: float | None
    batches: int
    failures: Mapping[int, HeadwaiterError] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Job:
    """A request being served.

    Attributes:
        sequences: how many it has.
        hidden: whether hidden rows were asked for.
        answer: resolves to the outcome, or fails.
        failures: why sequences have no result, by index, where the others shall be answered all the same; None where
            the first failure is that of the request.
        waiting: its sequences that have not started to run.
    """

    sequences: int
    hidden: bool
    answer: Future[Outcome]
    failures: dict[int, HeadwaiterError] | None = None
    waiting: "set[Sequence]" = field(default_factory=set)
    _pooled: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    _hidden: dict[int, NDArray[np.generic]] = field(default_factory=dict)
    _batches: set[Stamps] = field(default_factory=set)
    _delivered: int = 0

    def __post_init__(self) -> None:
        self._settle()

    def deliver(
        self, index: int, pooled: NDArray[np.float32] | None, hidden: NDArray[np.generic] | None, stamps: Stamps
    ) -> None:
        """Take the result of one sequence; the last one resolves the answer."""
        if pooled is not None:
            self._pooled[index] = pooled
        if hidden is not None:
            self._hidden[index] = hidden
        self._batches.add(stamps)
        self._delivered += 1
        self._settle()

    def fail(self, error: HeadwaiterError) -> None:
        """Take the failure of one sequence or of all, unless the answer is settled: the first error is told."""
        if self.answer.done():
            return
        if self.failures is None or error.sequence is None:
            self.answer.set_exception(error)
        else:
            self.failures.setdefault(error.sequence, error)
            self._settle()

    def _settle(self) -> None:
        """Resolve the answer, once every sequence has a result or has failed."""
        failures = self.failures or {}
        if self._delivered + len(failures) < self.sequences or self.answer.done():
            return
        self.answer.set_result(
            Outcome(
                [self._pooled[index] for index in sorted(self._pooled)] if self._pooled else None,
                [self._hidden[index] for index in sorted(self._hidden)] if self.hidden else None,
                sum(batch.assemble_s for batch in self._batches),
                sum(batch.compute_s for batch in self._batches),
                max((batch.computed_s for batch in self._batches), default=None),
                len(self._batches),
                failures,
            )
        )


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence of a request: the unit of work.

    Attributes:
        values: token ids [n] or features [n, d_in].
        length_tokens: n.
        due_s: when it should run at the latest, on the scheduler's clock; the earliest due is the most urgent.
        turn_s: when it should run if nobody is late; the earliest comes first.
        deadline_s: when its answer is worth nothing any more; infinity without a deadline.
        priority: of its request.
        job: the request it belongs to.
        index: its place in the request.
    """

    values: NDArray[np.generic]
    length_tokens: int
    due_s: float
    turn_s: float
    deadline_s: float
    priority: Priority
    job: "Job"
    index: int

    def is_wanted(self, now_s: float) -> bool:
        """Tell whether its answer is still of use to anybody."""
        return now_s < self.deadline_s and not self.job.answer.done()


def patience_s(priority: Priority, work_s: float) -> float:
    """Return how long a sequence may wait at most, whose request takes so many seconds alone.

    Were a request of long work due before its turn, a queue of a few such would be late by its mere length, and all of
    it would go before those who ask for little.
    """
    return max(PATIENCE_S[priority], _PATIENCE * work_s)


def due_s(arrived_s: float, deadline_s: float, priority: Priority, work_s: float) -> float:
    """Return when a sequence is due: at its deadline, or when its patience ends, whichever comes first.

    Bulk work takes what interactive work leaves, so a deadline makes it no more urgent.
    """
    patient_until_s = arrived_s + patience_s(priority, work_s)
    return patient_until_s if priority is Priority.BULK else min(deadline_s, patient_until_s)


def turn_s(arrived_s: float, due_s: float, priority: Priority, work_s: float) -> float:
    """Return when it is a sequence's turn, whose request takes so many seconds alone; of bulk work, when it is due."""
    return due_s if priority is Priority.BULK else min(due_s, arrived_s + _TURN * work_s)
