"""Owns the queue: admits requests, plans batches for the devices that are free, and hands out the answers."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.batching.admission import Outlook, QueueLimits, admit
from headwaiter_server.batching.cost import BatchLimits, CostModel, Pace
from headwaiter_server.batching.job import Job, Outcome, Priority, Sequence, due_s
from headwaiter_server.batching.pending import Pending
from headwaiter_server.batching.planner import Closed, plan
from headwaiter_server.batching.worker import Run, Worker
from headwaiter_server.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    Unavailable,
)
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.runtime.packing import PackedBatch

log = logging.getLogger(__name__)

# Nothing but an event can bring work.
_LATER_S = 3600.0


class Observer(Protocol):
    """Hears of what happens to batches."""

    def batch_closed(self, reason: Closed) -> None:
        """A batch was planned, and no larger for this reason."""

    def batch_ran(self, batch: PackedBatch, predicted_s: float, actual_s: float) -> None:
        """A batch has run."""

    def expired(self, sequences: int) -> None:
        """Sequences were dropped, their deadline past or too near."""


class Scheduler:
    """Queues sequences and runs them in packed batches.

    A device is given its next batch just before it is done with the last. Expired and cancelled sequences never run. A
    batch that fails on a device in order is halved and tried again, so that a sequence the model fails on fails alone;
    a device that is not is reopened, and what it was given is answered Unavailable.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        cost: CostModel,
        limits: BatchLimits,
        queue: QueueLimits,
        observer: Observer,
        on_available: Callable[[bool], None] = lambda available: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start serving; needs a running event loop.

        Args:
            workers: the devices.
            cost: the seconds a batch takes.
            limits: how large it may be.
            queue: what may wait.
            observer: hears of batches.
            on_available: told False when the last device died, and True when one is back.
            clock: of deadlines.
        """
        self._workers = list(workers)
        self._cost = cost
        self._limits = limits
        self._queue = queue
        self._observer = observer
        self._on_available = on_available
        self._clock = clock
        self._pending = Pending()
        self._order = count()
        self._pace = Pace()
        self._jobs: set[Job] = set()
        self._work = asyncio.Event()
        self._draining = False
        self._running: set[asyncio.Task[None]] = set()
        self._reopening: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._serve())

    @property
    def queued_sequences(self) -> int:
        """How many sequences wait, in planned batches too."""
        ahead = sum(not sequence.job.answer.done() for worker in self._workers for sequence in worker.ahead)
        return len(self._pending) + ahead

    @property
    def queued_tokens(self) -> int:
        """How many tokens wait, in planned batches too."""
        return self._pending.tokens + self._ahead_tokens

    @property
    def _ahead_tokens(self) -> int:
        return sum(
            sequence.length_tokens
            for worker in self._workers
            for sequence in worker.ahead
            if not sequence.job.answer.done()
        )

    @property
    def estimated_wait_s(self) -> float:
        """When a sequence that came now, the least urgent of all, would start."""
        return self._outlook(self._clock()).wait_s(self._pending.tokens)

    async def submit(
        self,
        values: list[NDArray[np.generic]],
        *,
        hidden: bool,
        deadline_s: float = float("inf"),
        priority: Priority = Priority.INTERACTIVE,
    ) -> Outcome:
        """Queue the sequences of a request, and return when the last has its answer.

        Cancelling the call withdraws what has not run yet.

        Args:
            values: token ids [n] or features [n, d_in] of each sequence.
            hidden: return hidden rows too.
            deadline_s: on the scheduler's clock.
            priority: bulk work yields to interactive work, until it has waited long.

        Raises:
            Overloaded: the queue has no room for it, or is too long for its deadline.
            Unavailable: the server is draining, or its device died.
            DeadlineExceeded: the deadline passed while it waited.
            InferenceFailed: the model failed on one of the sequences.
        """
        arrived_s = self._clock()
        due = due_s(arrived_s, deadline_s, priority)
        if self._draining:
            raise Unavailable("the server is shutting down: send the request to another replica")
        if not any(worker.alive for worker in self._workers):
            raise _dead()
        tokens = sum(len(sequence) for sequence in values)
        admit(self._outlook(arrived_s), self._queue, tokens, due, deadline_s - arrived_s)
        job = Job(len(values), hidden, asyncio.get_running_loop().create_future())
        for index, sequence in enumerate(values):
            waiting = Sequence(sequence, len(sequence), next(self._order), due, deadline_s, priority, job, index)
            self._pending.add(waiting)
            job.waiting.add(waiting)
        self._jobs.add(job)
        self._work.set()
        try:
            return await job.answer
        except asyncio.CancelledError:
            if self._clock() >= deadline_s and job.waiting:
                self._observer.expired(len(job.waiting))
            raise
        finally:
            self._jobs.discard(job)
            self._withdraw(job)

    async def failed(self) -> None:
        """Return only by raising what stopped the scheduler, should its task ever fail."""
        await asyncio.shield(self._task)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new work, answer what was admitted, and stop.

        Returns:
            How many requests had no answer in time: they are told Unavailable, and a device may still be busy.
        """
        self._draining = True
        self._work.set()
        await asyncio.wait({self._task}, timeout=timeout_s)
        given_up = [job for job in self._jobs if not job.answer.done()]
        for job in given_up:
            self._give_up(job, Unavailable("the server shut down before it came to the request: try another replica"))
        for task in (self._task, *self._running):
            task.cancel()
        for worker in self._workers:
            worker.close()
        return len(given_up)

    def _outlook(self, now_s: float) -> Outlook:
        busy_s = tuple(worker.busy_s(now_s) for worker in self._workers if worker.alive)
        # Where all devices are dead, nobody can say when one is back.
        return Outlook(self._pending, self._ahead_tokens, busy_s or (0.0,), self._cost, self._limits, self._pace.factor)

    async def _serve(self) -> None:
        while self._pending or self._running or not self._draining:
            self._work.clear()
            while self._start_next():
                pass
            timer = asyncio.get_running_loop().call_later(self._next_in_s(), self._work.set)
            await self._work.wait()
            timer.cancel()
            for tasks in (self._running, self._reopening):
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    task.result()
        for task in self._reopening:
            task.cancel()

    def _next_in_s(self) -> float:
        """Return in how many seconds a worker wants a batch, if any waits."""
        now_s = self._clock()
        soonest_s = min((worker.wants_next_in_s(now_s) for worker in self._workers), default=_LATER_S)
        return min(_LATER_S, soonest_s) if self._pending else _LATER_S

    def _start_next(self) -> bool:
        """Give a batch to a worker that wants one; tell whether there was a batch and a worker."""
        now_s = self._clock()
        wanting = [worker for worker in self._workers if worker.wants_next_in_s(now_s) <= 0]
        if not self._pending or not wanting:
            return False
        worker = min(wanting, key=lambda each: each.busy_s(now_s))
        chosen = plan(self._pending, now_s + worker.busy_s(now_s), self._cost, self._limits, self._pace.factor)
        for job in dict.fromkeys(sequence.job for sequence in chosen.expired):
            self._observer.expired(len(job.waiting))
            self._give_up(
                job, DeadlineExceeded("the deadline passed, or came too near, before the request's turn came")
            )
        # Also what was cancelled a moment ago, and is not withdrawn yet: or it would be planned again and again.
        for sequence in chosen.batch:
            if sequence in self._pending:
                self._pending.remove(sequence)
        batch = tuple(sequence for sequence in chosen.batch if not sequence.job.answer.done())
        if batch:
            self._observer.batch_closed(chosen.closed)
            self._spawn(self._running, self._finish(worker, batch, worker.give(batch, chosen.seconds)))
        return True

    def _spawn(self, tasks: "set[asyncio.Task[None]]", work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(lambda _: self._work.set())

    def _give_up(self, job: Job, error: HeadwaiterError) -> None:
        job.fail(error)
        self._withdraw(job)

    def _withdraw(self, job: Job) -> None:
        for sequence in job.waiting:
            # What is in a planned batch is left there: it will not run, as nobody wants it.
            if sequence in self._pending:
                self._pending.remove(sequence)
        job.waiting.clear()

    async def _finish(self, worker: Worker, batch: tuple[Sequence, ...], running: "asyncio.Future[Run | None]") -> None:
        """Hand out what a batch brings, or find out why it failed."""
        try:
            run = await running
        except Exception as error:  # noqa: BLE001 - whatever the device raises, a sequence or the device is to blame
            await self._blame(worker, batch, error)
            return
        ran = run.sequences if run else ()
        late = [each for each in set(batch).difference(ran) if not each.job.answer.done()]
        if late:
            self._observer.expired(len(late))
            for sequence in late:
                self._give_up(sequence.job, DeadlineExceeded("the deadline passed before the request's turn came"))
        if run:
            predicted_s = self._predict_s(ran)
            self._observer.batch_ran(run.batch, self._pace.factor * predicted_s, run.stamps.compute_s)
            self._pace.learn(predicted_s, run.stamps.compute_s)
            self._hand_out(run)

    def _predict_s(self, batch: tuple[Sequence, ...]) -> float:
        lengths = [sequence.length_tokens for sequence in batch]
        return self._cost.seconds(len(batch), sum(lengths), max(lengths), sum(length * length for length in lengths))

    async def _blame(self, worker: Worker, batch: tuple[Sequence, ...], error: Exception) -> None:
        """Halve a batch that failed, until the sequence to blame is alone, unless the device itself is dead."""
        if not (worker.alive and await worker.answers()):
            self._bury(worker, batch, error)
        elif len(batch) == 1:
            failure = _failure(batch[0], "the model failed on it")
            failure.__cause__ = error
            self._give_up(batch[0].job, failure)
        else:
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                # By now a request may have been cancelled, or given up for another of its sequences.
                wanted = tuple(sequence for sequence in half if not sequence.job.answer.done())
                if wanted:
                    await self._finish(worker, wanted, worker.give(wanted, self._pace.factor * self._predict_s(wanted)))

    def _bury(self, worker: Worker, batch: tuple[Sequence, ...], error: Exception) -> None:
        """Answer what a dead device leaves behind, and have it reopened."""
        for sequence in batch:
            self._give_up(sequence.job, _dead())
        if not worker.alive:
            return
        worker.alive = False
        log.error("the device died: %s", " ".join(str(error).split()))
        self._spawn(self._reopening, self._reopen(worker))
        if not any(each.alive for each in self._workers if each is not worker):
            self._on_available(False)
            for job in tuple(self._jobs):
                self._give_up(job, _dead())

    async def _reopen(self, worker: Worker) -> None:
        try:
            await worker.reopen()
        except DeviceLost:
            self._workers.remove(worker)
            if not self._workers:
                raise
            log.exception("one of the devices is lost; the others serve on")
            return
        log.info("the device is open again")
        self._on_available(True)

    def _hand_out(self, run: Run) -> None:
        """Give each sequence its own rows; one whose rows are not finite fails alone."""
        pooled = run.outputs.pooled
        hidden = None if run.outputs.hidden is None else run.batch.split(run.outputs.hidden)
        finite = (
            np.ones(run.batch.sequences, bool) if pooled is None else np.logical_and.reduce(np.isfinite(pooled), axis=1)
        )
        for place, sequence in enumerate(run.sequences):
            vector = None if pooled is None else pooled[place]
            rows = hidden[place] if hidden is not None and sequence.job.hidden else None
            if not finite[place] or (rows is not None and not np.isfinite(rows).all()):
                self._give_up(sequence.job, _failure(sequence, "the model's answer to it is not finite"))
            else:
                sequence.job.deliver(sequence.index, vector, rows, run.stamps)


def _failure(sequence: Sequence, what: str) -> InferenceFailed:
    return InferenceFailed(f"sequence {sequence.index}: {what}", sequence=sequence.index)


def _dead() -> Unavailable:
    return Unavailable("the device failed and is being reopened: try another replica, or again in some seconds")
