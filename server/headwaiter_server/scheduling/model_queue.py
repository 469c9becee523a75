"""The queue of one model: its waiting sequences, its sessions, and what was learnt about its batches."""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.admission import Backlog
from headwaiter_server.scheduling.batch_result import MAX_BATCHES, BatchResult, RecentBatch, recent_batch
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, LearntCost
from headwaiter_server.scheduling.job import Interval
from headwaiter_server.scheduling.observer import Observer, TraceBatch
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Batch, QueuedRequest, Sequence
from headwaiter_server.scheduling.request_errors import deadline_passed, output_not_finite
from headwaiter_server.scheduling.worker import Session, Worker
from headwaiter_server.settings.tenants import Tenant


class ModelQueue:
    """The queue of one model.

    Attributes:
        sessions: for each worker that can run the model, the session of the model on this worker.
        pending: the waiting sequences.
        requests: the requests that have no answer yet.
        queued_sequences: number of sequences that have not started to run.
        queued_tokens: number of tokens of these sequences.
        learnt: predicts the seconds of the model's batches.
        limits: the batch limits that hold now.
        observer: is notified of batches.
        trace_batch: makes the spans of batches; None without traces.
        recent_batches: the latest batches that ran.
        used_s: device seconds that the model has used; `ModelQueues` raises them when work arrives after a pause.
        batch_count: number of batches that are planned, that run, or that are bisected after a failure.
        closed: whether the queue takes no more requests.
    """

    def __init__(
        self,
        sessions: Mapping[Worker, Session],
        cost: CostModel,
        limits: BatchLimits,
        observer: Observer,
        largest_budget_tokens: int = 0,
        name: str = "the model",
    ) -> None:
        """Start an empty queue.

        Args:
            sessions: for each worker that can run the model, the session of the model on this worker.
            cost: predicts the seconds of a batch.
            limits: the largest limits of a batch.
            observer: is notified of batches.
            largest_budget_tokens: the largest token budget that may follow from the batches that run; 0 stands for that
                of `limits`.
            name: names the model in the log.
        """
        self.sessions, self.observer = dict(sessions), observer
        self.trace_batch: TraceBatch | None = None
        for worker, session in sessions.items():
            session.on_run = partial(observer.device_ran, worker.device)
            session.on_run(0.0)  # An idle device is shown as idle, and not left out.
        self.pending, self.requests = Pending(), set[QueuedRequest]()
        self.queued_sequences = self.queued_tokens = 0
        self.learnt, self.limits = LearntCost(cost), AdaptiveLimits(limits, name, largest_budget_tokens)
        self.recent_batches = deque[RecentBatch](maxlen=MAX_BATCHES)
        self.batch_count, self.used_s, self.closed = 0, 0.0, False
        self._idle = asyncio.Event()

    def backlog(self, tenant: Tenant | None = None) -> Backlog:
        """Return the waiting sequences, and the cost and the limits of their batches; `tenant` waits for them."""
        return Backlog(self.pending, self.learnt.cost, self.limits.current, tenant)

    @property
    def fills_a_batch(self) -> bool:
        """Whether the waiting tokens fill a batch."""
        return self.pending.tokens >= self.limits.current.tokens

    @property
    def leader(self) -> Sequence:
        """The waiting sequence with the earliest fair start; only while one waits."""
        leader = self.pending.leader
        assert leader is not None
        return leader

    def add(self, request: QueuedRequest, sequences: Collection[Sequence]) -> None:
        """Queue the sequences of a request."""
        request.queue_sequences(sequences)
        self.queued_sequences += len(sequences)
        for sequence in sequences:
            self.queued_tokens += sequence.length_tokens
            self.pending.add(sequence)
        self.requests.add(request)

    def discard(self, sequence: Sequence) -> None:
        """See `RequestQueue`."""
        self.pending.discard(sequence)

    def note_left(self, sequence: Sequence) -> None:
        """See `RequestQueue`."""
        self.queued_sequences -= 1
        self.queued_tokens -= sequence.length_tokens

    def end_request(self, request: QueuedRequest) -> None:
        """Forget a request that has its answer, or whose caller has gone."""
        self.requests.discard(request)
        request.withdraw()
        self._note_idle()

    def fail(self, error: HeadwaiterError) -> int:
        """Fail the requests that have no answer yet, and return their number."""
        unanswered = [request for request in self.requests if not request.answer.done()]
        for request in unanswered:
            request.fail(error)
        return len(unanswered)

    def drop_expired(self, expired: Batch) -> None:
        """Fail the requests of sequences that cannot be answered before their deadline."""
        for request in dict.fromkeys(sequence.request for sequence in expired):
            self.observer.expired(request.not_started_count)
            request.fail(deadline_passed())

    def hand_out(self, batch: Batch, result: BatchResult | None) -> None:
        """Hand out the rows of the sequences that ran, and fail the requests of the sequences that expired before."""
        ran = result.sequences if result else ()
        # The list comes first: the first late sequence of a request answers the request, and all of them count.
        late = [each for each in set(batch).difference(ran) if not each.request.answer.done()] if ran != batch else []
        for sequence in late:
            self.observer.expired(1 + sequence.request.not_started_count)
            sequence.request.fail(deadline_passed())
        if result:
            compute_s = result.times.run.seconds
            predicted_s = self.learnt.note_batch(result.shape, compute_s)
            self.limits.follow_cost(self.learnt.cost, result.shape)
            self.observer.batch_ran(result.shape, predicted_s, compute_s, result.times.packing.seconds)
            self.recent_batches.append(recent_batch(result, predicted_s))
            if self.trace_batch is not None:
                whole = Interval(result.times.packing.start_s, result.times.run.end_s)
                result.times.span = self.trace_batch(
                    result.sequences, result.device, predicted_s, whole, result.times.run.seconds, ""
                )
            for sequence in result.hand_out_rows():
                sequence.request.fail(output_not_finite(sequence.index))

    def start_batch(self, predicted_s: float) -> None:
        """Count a batch that was given to a worker."""
        self.batch_count += 1
        self.used_s += predicted_s

    def end_batch(self) -> None:
        """Stop counting a batch, because it has its results or errors."""
        self.batch_count -= 1
        self._note_idle()

    async def close(self) -> None:
        """Take no more requests, and wait until all requests have their answers and no batch runs."""
        self.closed = True
        self._note_idle()
        await self._idle.wait()

    def _note_idle(self) -> None:
        if self.closed and not self.requests and not self.batch_count:
            self._idle.set()
