"""Give requests their results and errors, and take the sequences of answered requests out of the queue."""

from collections import deque

from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, InferenceFailed
from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.cost_correction import CostCorrection
from headwaiter_server.scheduling.observer import Observer
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Batch, QueuedRequest
from headwaiter_server.scheduling.recent_batches import RecentBatch, recent_batch


class Answers:
    """Hands out results and errors."""

    def __init__(
        self, pending: Pending, correction: CostCorrection, observer: Observer, recent_batches: deque[RecentBatch]
    ) -> None:
        self._pending = pending
        self._correction = correction
        self._observer = observer
        self._recent_batches = recent_batches

    def hand_out(self, batch: Batch, result: BatchResult | None) -> None:
        """Hand out the rows of the sequences that ran, and fail the requests of the sequences that expired before."""
        ran = result.sequences if result else ()
        # A list, because all late sequences count, although the first one answers their request.
        late = [each for each in set(batch).difference(ran) if not each.request.answer.done()]
        for sequence in late:
            self._observer.expired(1 + len(sequence.request.not_started))
            self.fail(sequence.request, deadline_passed())
        if result:
            compute_s = result.times.run.seconds
            predicted_s = self._correction.note_batch(result.shape, compute_s)
            self._observer.batch_ran(result.shape, predicted_s, compute_s, result.times.packing.seconds)
            self._recent_batches.append(recent_batch(result, predicted_s))
            for sequence in result.hand_out_rows():
                self.fail(sequence.request, output_not_finite(sequence.index))

    def drop_expired(self, expired: Batch) -> None:
        """Fail the requests of sequences that cannot be answered before their deadline."""
        for request in dict.fromkeys(sequence.request for sequence in expired):
            self._observer.expired(len(request.not_started))
            self.fail(request, deadline_passed())

    def fail(self, request: QueuedRequest, error: HeadwaiterError) -> None:
        """Fail a request, or one sequence of a request that accepts a partial answer."""
        request.fail(error)
        if request.answer.done():
            self.withdraw(request)

    def fail_request(self, request: QueuedRequest, error: HeadwaiterError) -> None:
        """Fail a request, even if it accepts a partial answer."""
        if not request.answer.done():
            request.answer.set_exception(error)
            self.withdraw(request)

    def withdraw(self, request: QueuedRequest) -> None:
        """Take the sequences of a request out of the queue; a worker skips those that are in a planned batch."""
        for sequence in request.not_started:
            if sequence in self._pending:
                self._pending.remove(sequence)
        request.not_started.clear()


def deadline_passed() -> DeadlineExceeded:
    """Return the error of a request whose deadline passed, or came too near, before it ran."""
    return DeadlineExceeded(
        "the deadline passed, or came too near, while the request waited in the queue: allow more time"
    )


def inference_failed(index: int, cause: Exception) -> InferenceFailed:
    """Return the error of the sequence at an index, on which the model raised `cause`."""
    problem = f"the model failed on sequence {index}: change this sequence, or look for the cause in the server's log"
    failure = InferenceFailed(problem, sequence=index)
    failure.__cause__ = cause
    return failure


def output_not_finite(index: int) -> InferenceFailed:
    """Return the error of the sequence at an index whose output is not finite."""
    return InferenceFailed(
        f"the model's output for sequence {index} is not finite: change or leave out this sequence", sequence=index
    )
