"""Owns the queue: admits requests, plans batches for the devices that are free, and hands out the answers."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.errors import DeadlineExceeded, HeadwaiterError, Unavailable
from headwaiter_server.scheduling.admission import Outlook, QueueLimits, admit
from headwaiter_server.scheduling.batch_wait import Company
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.cost_correction import Expectations
from headwaiter_server.scheduling.devices import Devices
from headwaiter_server.scheduling.failed_batches import Faults, device_failed, sequence_failed
from headwaiter_server.scheduling.job import Job, Outcome, Priority, Sequence, due_s, turn_s
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.planner import Closed, plan
from headwaiter_server.scheduling.worker import Run, Worker

# A yield that takes longer has left the core to a process that computes: it is not to be repeated.
_YIELD_S = 0.001


class Observer(Protocol):
    """Hears of what happens to batches."""

    def batch_closed(self, reason: Closed) -> None:
        """A batch was planned, and no larger for this reason."""

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        """A batch has run."""

    def expired(self, sequences: int) -> None:
        """Sequences were dropped, their deadline past or too near."""


class Scheduler:
    """Queues sequences and runs them in packed batches.

    A device is given its next batch just before it is done with the last. Expired and cancelled sequences never run.
    `Faults` says what becomes of a batch that fails.
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
        self._loop = asyncio.get_running_loop()
        self._devices = Devices(workers, on_available)
        self._expected = Expectations(cost, limits.tokens)
        self._limits = limits
        self._queue = queue
        self._observer = observer
        self._clock = clock
        self._pending = Pending()
        self._faults = Faults(self._try_again, self._give_up, self._bury)
        self._jobs: set[Job] = set()
        # Batches that run, or that failed and are tried in parts.
        self._batches: set[asyncio.Future[Any]] = set()
        self._reopening: set[asyncio.Future[Any]] = set()
        self._soon = False
        self._company = Company()
        self._later: asyncio.TimerHandle | None = None
        self._draining = False
        self._drained = asyncio.Event()
        self._stopped: asyncio.Future[None] = self._loop.create_future()

    @property
    def queued_sequences(self) -> int:
        """How many sequences wait, in planned batches too."""
        return len(self._pending) + sum(1 for _ in self._devices.ahead())

    @property
    def queued_tokens(self) -> int:
        """How many tokens wait, in planned batches too."""
        return self._pending.tokens + self._ahead_tokens

    @property
    def _ahead_tokens(self) -> int:
        return sum(sequence.length_tokens for sequence in self._devices.ahead())

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
        failures: Mapping[int, HeadwaiterError] | None = None,
    ) -> Outcome:
        """Queue the sequences of a request, and return when the last has its answer.

        Cancelling the call withdraws what has not run yet.

        Args:
            values: token ids [n] or features [n, d_in] of each sequence.
            hidden: return hidden rows too.
            deadline_s: on the scheduler's clock.
            priority: bulk work yields to interactive work, until it has waited long.
            failures: what is wrong with sequences, by index, that must not run; where it is given, be it empty, others
                may fail too, and the rest is answered all the same.

        Raises:
            Overloaded: the queue has no room for it, or is too long for its deadline.
            Unavailable: the server is draining, or its device died.
            DeadlineExceeded: the deadline passed while it waited.
            InferenceFailed: the model failed on one of the sequences; not where `failures` are given.
        """
        if self._draining:
            raise Unavailable("the server is shutting down: send the request to another replica")
        if not self._devices.living:
            raise device_failed()
        job = Job(len(values), hidden, self._loop.create_future(), None if failures is None else dict(failures))
        if job.answer.done():
            return job.answer.result()
        sound = {index: sequence for index, sequence in enumerate(values) if not failures or index not in failures}
        arrived_s = self._clock()
        shape = Shape.of([len(sequence) for sequence in sound.values()])
        work_s = self._expected.work_s(shape)
        due = due_s(arrived_s, deadline_s, priority, work_s)
        turn = turn_s(arrived_s, due, priority, work_s)
        admit(self._outlook(arrived_s), self._queue, shape, due, deadline_s - arrived_s)
        for index, sequence in sound.items():
            waiting = Sequence(sequence, len(sequence), due, turn, deadline_s, priority, job, index)
            self._pending.add(waiting)
            job.waiting.add(waiting)
        self._jobs.add(job)
        self._company.came()
        self._plan_soon()
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
        """Return only by raising what stopped the scheduler, should anything ever."""
        await asyncio.shield(self._stopped)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new work, answer what was admitted, and stop.

        Returns:
            How many requests had no answer in time: they are told Unavailable, and a device may still be busy.
        """
        self._draining = True
        self._plan_soon()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        given_up = [job for job in self._jobs if not job.answer.done()]
        for job in given_up:
            self._give_up(job, Unavailable("the server shut down before it came to the request: try another replica"))
        for running in (*self._batches, *self._reopening):
            running.cancel()
        if self._later:
            self._later.cancel()
        self._devices.close()
        return len(given_up)

    def _outlook(self, now_s: float) -> Outlook:
        # Where all devices are dead, nobody can say when one is back.
        busy_s = self._devices.busy_s(now_s) or (0.0,)
        expected = self._expected
        return Outlook(self._pending, self._ahead_tokens, busy_s, expected.queue_cost, self._limits, expected.margin_s)

    def _plan_soon(self) -> None:
        """Plan once all that comes at this moment has come, and its company."""
        if not self._soon and (self._pending or self._draining):
            self._soon = True
            if self._later:
                self._later.cancel()
            self._loop.call_soon(self._safely, self._plan_in_company)

    def _plan_in_company(self) -> None:
        if self._keeps_device():
            self._loop.call_soon(self._safely, self._plan_in_company)
        else:
            self._plan_all()

    def _keeps_device(self) -> bool:
        """Leave the core for a moment where company may come; tell whether to do so again."""
        if self._draining or self._pending.tokens >= self._limits.tokens:
            return False
        now_s = self._clock()
        if not self._company.keep_another_turn(len(self._pending)) or not self._devices.wanting(now_s):
            return False
        # The threads that receive requests may have to share a core with this one.
        os.sched_yield()
        return self._clock() - now_s < _YIELD_S

    def _safely(self, act: Callable[..., None], *arguments: object) -> None:
        """Do what nobody waits for; what it raises stops the scheduler."""
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001 - whoever watches the scheduler is to hear of it
            if not self._stopped.done():
                self._stopped.set_exception(error)

    def _plan_all(self) -> None:
        self._soon = False
        while self._start_next():
            pass
        wanted_in_s = self._devices.wants_next_in_s(self._clock()) if self._pending else float("inf")
        if wanted_in_s < float("inf"):
            self._later = self._loop.call_later(wanted_in_s, self._safely, self._plan_all)
        if self._draining and not (self._pending or self._batches):
            self._drained.set()

    def _start_next(self) -> bool:
        """Give a batch to a worker that wants one; tell whether there was a batch and a worker."""
        now_s = self._clock()
        worker = self._devices.wanting(now_s) if self._pending else None
        if not worker:
            return False
        busy_s = worker.busy_s(now_s)
        # A device with nothing to do tries what may come too late: else a margin once too large would stay so.
        margin_s = self._expected.margin_s if busy_s else 0.0
        starts_s = now_s + busy_s
        chosen = plan(self._pending, starts_s, self._expected.cost, self._limits, margin_s, self._devices.living)
        if chosen.expired and not (chosen.batch or busy_s):
            # Nobody can be in time on an idle device, by the estimates: they may be wrong.
            self._expected.doubt()
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
            self._company.served(together=any(sequence.job is not batch[0].job for sequence in batch))
            self._observer.batch_closed(chosen.closed)
            running = worker.give(batch, chosen.seconds)
            self._batches.add(running)
            done_s = starts_s + chosen.seconds
            running.add_done_callback(partial(self._safely, self._settle, worker, batch, chosen.closed, done_s))
        return True

    def _settle(
        self,
        worker: Worker,
        batch: tuple[Sequence, ...],
        closed: Closed,
        done_s: float,
        running: "asyncio.Future[Run | None]",
    ) -> None:
        """Hand out what a batch brought, and learn from its times; or find out why it failed."""
        self._batches.discard(running)
        if running.cancelled():
            return
        error = running.exception()
        if isinstance(error, Exception):
            self._spawn(self._batches, self._faults.blame(worker, batch, error))
        else:
            run = running.result()
            shape = self._answer(batch, run)
            self._expected.answered(self._clock() - done_s)
            if run and shape:
                self._expected.left_queue(shape, run.stamps.device_s, last=closed is Closed.DRAINED)
            self._plan_soon()

    def _spawn(self, tasks: "set[asyncio.Future[Any]]", work: Coroutine[None, None, None]) -> None:
        def finish(task: "asyncio.Task[None]") -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.result()
                self._plan_soon()

        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(partial(self._safely, finish))

    def _give_up(self, job: Job, error: HeadwaiterError) -> None:
        job.fail(error)
        # The rest of a request may be answered though one of its sequences failed.
        if job.answer.done():
            self._withdraw(job)

    def _withdraw(self, job: Job) -> None:
        for sequence in job.waiting:
            # What is in a planned batch is left there: it will not run, as nobody wants it.
            if sequence in self._pending:
                self._pending.remove(sequence)
        job.waiting.clear()

    def _answer(self, batch: tuple[Sequence, ...], run: Run | None) -> Shape | None:
        """Hand out what a batch brought to those of its sequences that ran, and tell the others that they are late.

        Returns:
            The shape of what ran, if anything did.
        """
        ran = run.sequences if run else ()
        late = [each for each in set(batch).difference(ran) if not each.job.answer.done()]
        for sequence in late:
            self._observer.expired(1 + len(sequence.job.waiting))
            self._give_up(sequence.job, DeadlineExceeded("the deadline passed before the request's turn came"))
        if not run:
            return None
        shape = _shape(ran)
        compute_s = run.stamps.compute_s
        self._observer.batch_ran(shape, self._expected.ran(shape, compute_s), compute_s)
        for sequence in run.deliver():
            self._give_up(sequence.job, sequence_failed(sequence, "the model's answer to it is not finite"))
        return shape

    async def _try_again(self, worker: Worker, batch: tuple[Sequence, ...]) -> Exception | None:
        """Run part of a batch that failed, and hand out what it brings; or return what the device raised."""
        try:
            run = await worker.give(batch, self._expected.cost.seconds(*_shape(batch)))
        except Exception as error:  # noqa: BLE001 - whatever the device raises, a sequence or the device is to blame
            return error
        self._answer(batch, run)
        return None

    def _bury(self, worker: Worker, error: Exception) -> None:
        """Mark a device dead and have it reopened; where none lives, fail all that waits."""
        self._devices.bury(worker, error)
        self._spawn(self._reopening, self._devices.reopen(worker))
        if not self._devices.living:
            for job in tuple(self._jobs):
                self._give_up(job, device_failed())


def _shape(batch: Iterable[Sequence]) -> Shape:
    return Shape.of([sequence.length_tokens for sequence in batch])
