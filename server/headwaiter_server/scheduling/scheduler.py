"""Queue the sequences of all requests, and run them in packed batches: one loop from arrival to answer.

A sequence goes through the scheduler in these steps:

1. `submit`, or `enqueue` for a front end in another process, admits the request or refuses it, puts its sequences into
   the queue of the model, and wakes the loop.
2. The loop (`_serve`) sleeps until a request arrives, a batch is done, or a worker is about to want its next batch.
3. The loop hands out the results of batches that are done. Tasks beside the loop bisect failed batches, and notice
   devices that are dead or hang.
4. If more requests are about to arrive, the loop holds an idle device for some iterations of the event loop.
5. For each worker that wants a batch, `ModelQueues.next` chooses the model, and `plan` chooses the sequences. The
   loop also drops the sequences that `plan` finds expired.
6. The worker packs the batch, runs it in a thread, and wakes the loop: step 3 again.
7. The last result of a request resolves its answer, which `submit` returns, or which leaves for the front end.

A device that dies ends the scheduler, after every caller was answered. On CUDA, a kernel's illegal access or a lost
card makes every later call of the process fail, in new sessions too, and a thread that hangs in the driver cannot be
interrupted. Only a new process can use the device again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.concurrency.wake_up import WakeUp
from headwaiter_server.concurrency.worker_thread import NeverRan
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.admission import QueueLimits, WaitEstimate, admit
from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.batch_wait import ENOUGH_SEQUENCES, BatchWait, yield_core
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.failed_batches import bisect, fail_on_dead_device
from headwaiter_server.scheduling.fair_start import Priority, fair_start_s
from headwaiter_server.scheduling.job import Interval, Job, Outcome
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.model_queues import ModelQueues
from headwaiter_server.scheduling.observer import Observer
from headwaiter_server.scheduling.planner import Plan, plan
from headwaiter_server.scheduling.queued_request import Batch, QueuedRequest, Sequence, shape_of
from headwaiter_server.scheduling.request_errors import (
    deadline_passed,
    is_late,
    shutting_down,
)
from headwaiter_server.scheduling.token_rates import TokenRates
from headwaiter_server.scheduling.worker import Devices, Session, Worker
from headwaiter_server.settings.tenants import UNNAMED, Tenant


@dataclass(eq=False, slots=True)
class _RunningBatch:
    """A batch that a worker runs or will run next; `result` is that of `Worker.run`."""

    queue: ModelQueue
    worker: Worker
    sequences: Batch
    result: asyncio.Future[BatchResult | None]
    planned_s: float
    predicted_s: float


class Scheduler:
    """Queues the sequences of all models, and runs them in packed batches; expired and cancelled ones never run."""

    def __init__(
        self,
        workers: Iterable[Worker],
        queue_limits: QueueLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the loop; needs a running event loop.

        Args:
            workers: run the batches.
            queue_limits: of the queue of each model.
            clock: the clock of the deadlines.
        """
        self._wake_up = WakeUp()
        self._queue_limits, self._clock = queue_limits, clock
        self._queues, self._rates = ModelQueues(), TokenRates()
        self._devices = Devices(workers, self._wake_up.set)
        self._running: list[_RunningBatch] = []
        # Tasks that bisect failed batches, and watch for devices that hang.
        self._beside = BackgroundTasks(self._wake_up.set)
        self._batch_wait, self._draining = BatchWait(), False
        self._beside.start(self._devices.watch())
        self._serving = asyncio.create_task(self._serve())

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The devices that run the batches of all models."""
        return self._devices.workers

    def add_model(
        self,
        sessions: Mapping[Worker, Session],
        cost: CostModel,
        limits: BatchLimits,
        observer: Observer,
        largest_budget_tokens: int = 0,
        name: str = "the model",
    ) -> ModelQueue:
        """Return the queue of a new model; see `ModelQueue`."""
        queue = ModelQueue(sessions, cost, limits, observer, largest_budget_tokens, name)
        self._queues.append(queue)
        return queue

    async def remove_model(self, queue: ModelQueue) -> None:
        """Refuse new requests for a model; once the admitted requests are answered, free the model's sessions."""
        await queue.close()
        self._queues.remove(queue)
        for worker, session in queue.sessions.items():
            await worker.close_session(session)

    def estimated_wait_s(self, queue: ModelQueue) -> float:
        """Return the estimated wait of a sequence that arrives now and is less urgent than all others, in seconds."""
        return self._wait_estimate(queue, self._clock()).wait_s()

    async def submit(self, queue: ModelQueue, job: Job, on_queued: Callable[[], None] = lambda: None) -> Outcome:
        """Queue the sequences of a job, and return its answer; cancelling withdraws what has not started to run.

        Args:
            queue: the queue of the model.
            job: the sequences, and how they run.
            on_queued: called when the job is admitted; an error before that is a refusal.

        Raises:
            Overloaded: the queue has no room for the job, or is too long for its deadline.
            Unavailable: the server is draining, the model is being unloaded, or a device has died.
            DeviceFailed: a device died while it ran the job.
            DeadlineExceeded: the deadline passed while the job waited, or is too near even without a queue.
            InferenceFailed: the model failed on a sequence; never raised if `job.failures` is given.
        """
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        request = QueuedRequest(queue, job, answer)
        if answer.done():
            return answer.result()
        self.enqueue(queue, request)
        on_queued()
        try:
            outcome = await answer
        except asyncio.CancelledError:
            self.withdraw(queue, request)
            raise
        except BaseException:
            queue.end_request(request)
            raise
        queue.end_request(request)
        return outcome

    def enqueue(self, queue: ModelQueue, request: QueuedRequest) -> None:
        """Queue the sequences of a request that has no answer yet, or refuse it as `submit` does.

        The owner of the request calls `ModelQueue.end_request` once the answer is there, or `withdraw` before.
        """
        values, hidden, deadline_s, priority, failures, *_ = job = request.job
        request.arrived_s = self._clock()
        if request.arrived_s >= deadline_s:
            # Refuse early: queueing 1,000 expired sequences takes 2 ms.
            queue.observer.expired(len(values) - len(failures or ()))
            raise deadline_passed()
        runnable = [(index, sequence, len(sequence)) for index, sequence in enumerate(values)]
        if failures:
            runnable = [each for each in runnable if each[0] not in failures]
        shape = Shape.of([length for _, _, length in runnable], hidden=hidden)
        fair_start = self.admit(queue, shape, deadline_s, priority, job.calls, job.tenant)
        self._rates.spend(job.tenant, shape.tokens, request.arrived_s)
        self._queues.note_arrival(queue)
        is_suspect = job.device_failures > 0
        sequences = [
            Sequence(sequence, length, fair_start, deadline_s, priority, request, index, hidden, is_suspect, job.tenant)
            for index, sequence, length in runnable
        ]
        queue.add(request, sequences)
        self._batch_wait.note_arrival()
        self._wake_up.set()

    def withdraw(self, queue: ModelQueue, request: QueuedRequest) -> None:
        """Forget a request whose answer is no longer wanted, perhaps because its deadline has passed."""
        if is_late(self._clock(), request.arrived_s, request.job.deadline_s) and request.not_started_count:
            queue.observer.expired(request.not_started_count)
        queue.end_request(request)
        if self._draining:
            self._wake_up.set()  # The request may have been the last one.

    def admit(
        self,
        queue: ModelQueue,
        shape: Shape,
        deadline_s: float,
        priority: Priority,
        calls: int = 1,
        tenant: Tenant = UNNAMED,
    ) -> float:
        """Return the fair start of a request that arrives now, or refuse it as `submit` does.

        Calls that share a request have the fair starts that requests of their own would have.
        """
        if self._draining:
            raise shutting_down()
        if queue.closed:
            raise Unavailable("the model is being unloaded: send the request to another replica")
        arrived_s, own_work_s = self._clock(), queue.learnt.own_work_s(shape) / calls
        self._rates.check(tenant, arrived_s)
        fair_start = fair_start_s(arrived_s, deadline_s, priority, own_work_s)
        estimate = self._wait_estimate(queue, arrived_s, tenant)
        admit(estimate, self._queue_limits, shape, fair_start, deadline_s - arrived_s)
        return fair_start

    async def failed(self) -> None:
        """Wait until the loop ends; all requests are answered then.

        Raises:
            DeviceLost: a device is dead or hangs.
            Exception: the error of the loop, if it has failed.
        """
        await asyncio.shield(self._serving)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, answer the admitted ones, and stop.

        Returns:
            Number of requests without an answer in time. They fail with Unavailable, and a device may still be busy.
        """
        self._draining = True
        self._wake_up.set()
        await asyncio.wait({self._serving}, timeout=timeout_s)
        stopped = Unavailable("the server stopped before it ran the request: try another replica")
        unanswered = sum(queue.fail(stopped) for queue in self._queues)
        for work in (self._serving, self._beside):
            work.cancel()
        for batch in self._running:
            batch.result.cancel()
        self._devices.close()
        return unanswered

    async def _serve(self) -> None:
        """Run the loop; if it fails, answer every caller first."""
        try:
            await self._serve_until_drained()
        except Exception as error:
            self._draining = True
            if isinstance(error, DeviceLost):
                # All sessions of one GPU die together, so what other workers run may have killed the device, too.
                for batch in self._running:
                    if not batch.worker.dead:
                        fail_on_dead_device(batch.sequences)
            for queue in self._queues:
                queue.fail(Unavailable("a device failed, and the server ends: send the request to another replica"))
            raise

    async def _serve_until_drained(self) -> None:
        """Run steps 2 to 6 of the module's docstring until the last request of a drain is answered."""
        while not self._draining or any(queue.queued_sequences or queue.batch_count for queue in self._queues):
            next_batch_in_s = self._devices.wants_batch_in_s(self._clock(), self._queues.want)
            timed_out = await self._wake_up.wait(next_batch_in_s)
            answered = self._hand_out_results()
            # Callers that have just been answered may send their next requests within an iteration of the event loop.
            while any(self._queues.waiting) and (answered or (not timed_out and self._expects_more_requests())):
                await asyncio.sleep(0)
                answered = self._hand_out_results()
            self._wake_up.clear()
            # This frame never ends, so it must hold no batch and no worker: their memory would stay allocated.
            while self._start_batch():
                pass

    def _hand_out_results(self) -> bool:
        """Hand out results, and start to bisect failed batches; return whether a request may have been answered."""
        self._beside.raise_errors()  # Any error of a task beside the loop stops the scheduler.
        answered = False
        for batch in [batch for batch in self._running if batch.result.done()]:
            self._running.remove(batch)
            error = batch.result.exception()
            if isinstance(error, DeviceLost):
                fail_on_dead_device(batch.sequences)
                raise error
            if isinstance(error, NeverRan):
                continue  # The batch on which the device was lost ends the scheduler.
            answered = True
            if isinstance(error, Exception):
                if batch.queue.trace_batch is not None:
                    whole, name = Interval(batch.planned_s, self._clock()), type(error).__name__
                    device, predicted_s = batch.worker.device, batch.predicted_s
                    batch.queue.trace_batch(batch.sequences, device, predicted_s, whole, None, name)
                self._beside.start(self._bisect(batch.queue, batch.worker, batch.sequences, error))
                continue
            result, queue = batch.result.result(), batch.queue
            queue.hand_out(batch.sequences, result)
            if result:
                queue.limits.note_success(result.shape)
            queue.end_batch()
        return answered

    def _expects_more_requests(self) -> bool:
        """Return whether to hold idle devices for another iteration of the event loop."""
        # At least one sequence waits in each of these queues, so further queues cannot change the answer.
        waiting = tuple(islice(self._queues.waiting, ENOUGH_SEQUENCES))
        if self._draining or any(queue.fills_a_batch for queue in waiting):
            return False
        hold = self._batch_wait.holds_device(sum(len(queue.pending) for queue in waiting))
        idle = hold and self._devices.next_worker(self._clock(), self._queues.want) is not None
        return idle and yield_core(self._clock)

    def _start_batch(self) -> bool:
        """Plan and run the next batch, and drop expired sequences; return whether a worker wanted a batch."""
        worker = self._devices.next_worker(now_s := self._clock(), self._queues.want)
        if worker is None:
            return False
        queue = self._queues.next(worker, now_s)
        busy_s = worker.busy_s(now_s)
        cost, limits = queue.learnt.cost, queue.limits.current
        planned = plan(queue.pending, now_s + busy_s, cost, limits, idle=not busy_s)
        queue.drop_expired(planned.expired)
        if planned.batch and planned.batch[0].is_suspect:
            worker = self._worker_with_suspect(queue) or worker
        self._run_batch(queue, worker, planned)
        return True

    def _worker_with_suspect(self, queue: ModelQueue) -> Worker | None:
        """Return the worker that a suspect runs on; the next suspect runs behind it.

        All sessions of one GPU die together, so of two suspects that run at the same time, either may be to blame.
        """
        workers = (batch.worker for batch in self._running if batch.sequences[0].is_suspect)
        return next((worker for worker in workers if worker in queue.sessions), None)

    def _run_batch(self, queue: ModelQueue, worker: Worker, planned: Plan) -> None:
        """Take a planned batch out of the queue, and run the sequences that are still wanted."""
        queue.pending.take(planned.batch)
        # A request that was cancelled within this iteration of the event loop has not been withdrawn yet.
        batch = tuple(sequence for sequence in planned.batch if not sequence.request.answer.done())
        if batch:
            self._batch_wait.note_batch(several_requests=any(each.request is not batch[0].request for each in batch))
            queue.observer.batch_planned(planned.close_reason)
            planned_s = self._clock()
            self._queues.note_start(queue, planned_s)
            seconds = planned.seconds if batch == planned.batch else queue.learnt.cost.seconds(*shape_of(batch))
            queue.start_batch(seconds)
            result = worker.run(queue.sessions[worker], batch, seconds)
            self._running.append(_RunningBatch(queue, worker, batch, result, planned_s, seconds))

    async def _bisect(self, queue: ModelQueue, worker: Worker, batch: Batch, error: Exception) -> None:
        """Find the faulty sequences of a failed batch.

        Raises:
            DeviceLost: the device died or hangs; the requests of the batch have failed.
        """
        try:
            with queue.limits.halved_for(shape_of(batch)):
                found = await bisect(queue, worker, batch, error)
        except DeviceLost:
            fail_on_dead_device(batch)
            raise
        except NeverRan:
            return
        queue.observer.batch_failed(found.cause)
        if found.too_large:
            queue.limits.note_memory_failure(shape_of(found.too_large), error)
        queue.end_batch()

    def _wait_estimate(self, queue: ModelQueue, now_s: float, tenant: Tenant | None = None) -> WaitEstimate:
        busy_s = self._devices.busy_s(now_s, queue.sessions)
        return WaitEstimate(queue.backlog(tenant), queue.queued_tokens, busy_s, partial(self._queues.others_s, queue))
