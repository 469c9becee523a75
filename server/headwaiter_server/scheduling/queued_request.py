"""A request in the queue, and its sequences, which wait and run separately; the request joins their results."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import BatchTimes, Job, Outcome
from headwaiter_server.settings.tenants import UNNAMED, Tenant


class SequenceResult(NamedTuple):
    """The rows of one sequence in the outputs of a batch; None for an output that the model lacks, or is not wanted."""

    pooled: NDArray[Any] | None
    hidden: NDArray[np.generic] | None
    logits: NDArray[np.float32] | None


class AnswerReceiver(Protocol):
    """What waits for the answer to a request: a future of asyncio, for example."""

    def done(self) -> bool:
        """Return whether the answer is there, or nothing waits for it any more."""
        ...

    def set_result(self, result: Outcome, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, exception: HeadwaiterError, /) -> None:
        """Take the error that the request fails with."""
        ...


class RequestQueue(Protocol):
    """What a request tells the queue that its sequences wait in."""

    def discard(self, sequence: "Sequence") -> None:
        """Take a sequence out of the queue, if it waits there."""
        ...

    def note_left(self, sequence: "Sequence") -> None:
        """Stop counting a sequence as queued."""
        ...


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request whose answer is not complete.

    Attributes:
        queue: the queue of the request's model.
        job: what the request asks for.
        answer: resolves to the outcome, or fails.
        failures: the errors of failed sequences, by index, for a request that accepts partial answers; None for a
            request that fails with its first failed sequence.
        arrived_s: when the request came to the queue, on the scheduler's clock.
        not_started_count: number of the request's sequences that have not started to run.
        batches: the times of each batch that a sequence of the request ran in.
        number: the number of the request in this process.
    """

    queue: RequestQueue
    job: Job
    answer: AnswerReceiver
    failures: dict[int, HeadwaiterError] | None = field(default=None, init=False)
    arrived_s: float = 0.0
    not_started_count: int = 0
    number: int = field(default_factory=count().__next__)
    batches: tuple[BatchTimes, ...] = ()
    _sequences: "Collection[Sequence]" = ()
    _result_count: int = 0

    def __post_init__(self) -> None:
        if self.job.failures is not None:
            self.failures = dict(self.job.failures)
        self._resolve_if_complete()

    def queue_sequences(self, sequences: "Collection[Sequence]") -> None:
        """Note that the sequences of the request are queued."""
        self._sequences, self.not_started_count = sequences, len(sequences)
        for sequence in sequences:
            sequence.is_queued = True

    def note_started(self, sequence: "Sequence") -> None:
        """Stop counting a sequence as queued, because it runs or was withdrawn."""
        if sequence.is_queued:
            sequence.is_queued = False
            self.not_started_count -= 1
            self.queue.note_left(sequence)

    def note_batch(self, times: BatchTimes) -> None:
        """Note that a sequence of the request ran in a batch."""
        if times not in self.batches:
            self.batches = (*self.batches, times)

    def add_result(self, sequence: "Sequence", result: SequenceResult) -> None:
        """Store the result of one sequence; the last result resolves the answer."""
        sequence.result = result
        self._result_count += 1
        self._resolve_if_complete()

    def fail(self, error: HeadwaiterError) -> None:
        """Record the error of one sequence, or of the whole request; ignore an error after the answer is complete."""
        if self.failures is None or error.sequence is None or self.answer.done():
            self.fail_whole(error)
            return
        self.failures.setdefault(error.sequence, error)
        self._resolve_if_complete()
        if self.answer.done():
            self.withdraw()

    def fail_whole(self, error: HeadwaiterError) -> None:
        """Fail the request, even if it accepts a partial answer; ignore an error after the answer is complete."""
        if not self.answer.done():
            self.answer.set_exception(error)
        self.withdraw()

    def withdraw(self) -> None:
        """Take the sequences out of the queue; a worker skips those that are in a planned batch."""
        if self.not_started_count:
            for sequence in self._sequences:
                self.queue.discard(sequence)
                self.note_started(sequence)
        # A sequence refers to its request. Without this, only the garbage collector could free both.
        self._sequences = ()

    def _resolve_if_complete(self) -> None:
        """Resolve the answer once every sequence has a result or an error."""
        failures = self.failures or {}
        if self._result_count + len(failures) < len(self.job.values) or self.answer.done():
            return
        results = [sequence.result for sequence in self._sequences if sequence.result is not None]
        pooled = [result.pooled for result in results if result.pooled is not None]
        hidden = [result.hidden for result in results if result.hidden is not None] if self.job.hidden else None
        logits = [result.logits for result in results if result.logits is not None]
        self.answer.set_result(Outcome(pooled or None, hidden, self.batches, failures, logits or None))


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence of a request: the unit of work.

    Attributes:
        values: token ids [n] or features [n, d_in].
        length_tokens: n.
        fair_start_s: fair start, on the scheduler's clock; orders the queue.
        deadline_s: deadline, on the same clock; infinity without a deadline.
        priority: priority of the request.
        index: position in the request.
        hidden: whether the hidden rows of the sequence are needed.
        is_suspect: whether a device of another server died while it ran the sequence. A suspect runs alone.
        tenant: tenant of the request.
        is_queued: whether the sequence was queued and has not started to run.
        result: the rows of the sequence, once it has run.
    """

    values: NDArray[np.generic]
    length_tokens: int
    fair_start_s: float
    deadline_s: float
    priority: Priority
    request: QueuedRequest
    index: int
    hidden: bool = False
    is_suspect: bool = False
    tenant: Tenant = UNNAMED
    is_queued: bool = False
    result: SequenceResult | None = None

    def is_wanted(self, now_s: float) -> bool:
        """Return whether the deadline has not passed and the request has no answer yet."""
        return now_s < self.deadline_s and not self.request.answer.done()


# Sequences that run together.
Batch = tuple[Sequence, ...]


def shape_of(batch: Batch) -> Shape:
    """Return the shape of a batch."""
    lengths = [sequence.length_tokens for sequence in batch]
    return Shape.of(lengths, hidden=any(sequence.hidden for sequence in batch))
