"""A request in the queue, and its sequences, which wait and run separately; the request joins their results."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority

if TYPE_CHECKING:
    from headwaiter_server.scheduling.model_queue import ModelQueue


class Interval(NamedTuple):
    """A part of the time, on one clock."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.end_s - self.start_s


# A class with an instance per sequence, request or batch is not frozen, here and in other modules, because a frozen
# dataclass makes a call for each field that it sets.
@dataclass(eq=False, slots=True)
class BatchTimes:
    """The times of one batch, on the scheduler's clock.

    Attributes:
        packing: when the batch was packed.
        run: when the batch ran on the device.
        span: the ids of the batch's span; empty if the batch has none.
    """

    packing: Interval
    run: Interval
    span: bytes = b""


class SequenceResult(NamedTuple):
    """The rows of one sequence in the outputs of a batch; None for an output that the model lacks, or is not wanted."""

    pooled: NDArray[Any] | None
    hidden: NDArray[np.generic] | None
    logits: NDArray[np.float32] | None


@dataclass(eq=False, slots=True)
class Outcome:
    """The answer to a request.

    Attributes:
        pooled: float32 [width] of each sequence that did not fail, not scaled to unit length, or the entries of its
            sparse vector; None for a model without pooling, or if all sequences failed.
        hidden: rows [n_i, width] of each sequence that did not fail; None unless requested.
        batches: the times of each batch that a sequence of the request ran in.
        failures: the errors of failed sequences, by index; empty unless the request accepts partial answers.
        logits: of each sequence that did not fail, see `Outputs`; None for a model without a head, or if all failed.
    """

    pooled: list[NDArray[Any]] | None
    hidden: list[NDArray[np.generic]] | None
    batches: Collection[BatchTimes] = ()
    failures: Mapping[int, HeadwaiterError] = field(default_factory=dict)
    logits: list[NDArray[np.float32]] | None = None

    def completed_s(self, answered_s: float) -> float:
        """Return when the last result was complete, on the scheduler's clock; `answered_s` is when the answer came.

        A failure has no times of its own: it may be the last result, and comes with the answer.
        """
        ends_s = [batch.run.end_s for batch in self.batches]
        return max(ends_s) if ends_s and not self.failures else answered_s


class Answer(Protocol):
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


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request whose answer is not complete.

    Attributes:
        queue: the queue of the request's model.
        sequence_count: number of sequences in the request.
        hidden: whether the answer includes hidden rows.
        answer: resolves to the outcome, or fails.
        failures: the errors of failed sequences, by index, for a request that accepts partial answers; None for a
            request that fails with its first failed sequence.
        device_failures: number of devices of other servers that died while they ran the request.
        trace: the ids of the request's span; empty if the request is not sampled.
        arrived_s: when the request came to the queue, on the scheduler's clock.
        deadline_s: deadline, on the same clock; infinity without a deadline.
        not_started_count: number of the request's sequences that have not started to run.
        batches: the times of each batch that a sequence of the request ran in.
        number: the number of the request in this process.
    """

    queue: "ModelQueue"
    sequence_count: int
    hidden: bool
    answer: Answer
    failures: dict[int, HeadwaiterError] | None = None
    device_failures: int = 0
    trace: bytes = b""
    arrived_s: float = 0.0
    deadline_s: float = float("inf")
    not_started_count: int = 0
    number: int = field(default_factory=count().__next__)
    batches: tuple[BatchTimes, ...] = ()
    _sequences: "Collection[Sequence]" = ()
    _result_count: int = 0

    def __post_init__(self) -> None:
        self._resolve_if_complete()

    def queue_sequences(self, sequences: "Collection[Sequence]") -> None:
        """Count the sequences of the request as queued."""
        self._sequences, self.not_started_count = sequences, len(sequences)
        self.queue.queued_sequences += len(sequences)
        for sequence in sequences:
            sequence.is_queued = True
            self.queue.queued_tokens += sequence.length_tokens

    def note_started(self, sequence: "Sequence") -> None:
        """Stop counting a sequence as queued, because it runs or was withdrawn."""
        if sequence.is_queued:
            sequence.is_queued = False
            self.not_started_count -= 1
            self.queue.queued_sequences -= 1
            self.queue.queued_tokens -= sequence.length_tokens

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
                self.queue.pending.discard(sequence)
                self.note_started(sequence)
        # A sequence refers to its request. Without this, only the garbage collector could free both.
        self._sequences = ()

    def _resolve_if_complete(self) -> None:
        """Resolve the answer once every sequence has a result or an error."""
        failures = self.failures or {}
        if self._result_count + len(failures) < self.sequence_count or self.answer.done():
            return
        results = [sequence.result for sequence in self._sequences if sequence.result is not None]
        pooled = [result.pooled for result in results if result.pooled is not None]
        hidden = [result.hidden for result in results if result.hidden is not None] if self.hidden else None
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
