"""The devices of a server: workers, which of them takes the next batch, and when a device hangs.

A worker runs the batches of all models on one device in a thread, and packs the next batch in a second thread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from headwaiter_server.concurrency.watchdog import run_limit_s
from headwaiter_server.concurrency.worker_thread import NeverRan, WorkerThread
from headwaiter_server.runtime.errors import DeviceLost, one_line
from headwaiter_server.runtime.graph import GraphOutputs, Result
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.job import BatchTimes, Interval
from headwaiter_server.scheduling.queued_request import Batch, shape_of

# One batch runs while the next one is packed.
_MAX_BATCHES = 2
# A worker wants its next batch this long before the predicted end of the running batch, and longer for each token of
# the running batch: just enough time to plan and to pack another batch of this size. Planning earlier would miss
# requests that arrive meanwhile.
_LEAD_S = 0.002
_LEAD_TOKEN_S = 1e-7
# The predicted remaining time of a batch that already runs longer than predicted.
_OVERDUE_S = 0.001
# A batch of a model that is being loaded, and the closing of a session, may take this long; nothing predicts it.
_UNPREDICTED_LIMIT_S = 600.0
# A packed batch, and when it was packed.
_Packed = tuple[PackedBatch, Interval]
_WATCH_INTERVAL_S = 1.0


class Graph(Protocol):
    """Runs the batches of one model on one device."""

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch with all that `run` needs; called while another thread runs another batch."""
        ...

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        """Run a batch, which need not be prepared; called from one thread at a time."""
        ...


@dataclass(eq=False, slots=True)
class Session:
    """A model on one device.

    Attributes:
        graph: runs the batches; a closed session has no graph.
        probe: a batch for which a working device returns finite values.
        on_run: called with the seconds of each batch, whether the batch failed or not, in the thread of the device.
    """

    graph: Graph
    probe: PackedBatch
    on_run: Callable[[float], None] = lambda _: None

    def answers_probe(self) -> bool:
        """Run the probe, and return whether the device works."""
        try:
            outputs = self.graph.run(self.probe, hidden=False)
        except Exception:  # noqa: BLE001 - any error means that the device does not work
            return False
        rows = [values for values in (outputs.pooled, outputs.hidden, *(outputs.logits or ())) if values is not None]
        return all(bool(np.isfinite(values).all()) for values in rows)

    def close(self) -> None:
        """Free the memory of the graph; call this in the thread of the device, because it takes a while."""
        del self.graph


class Worker:
    """Runs batches on a device, first in, first out; each batch in the session of its model.

    Attributes:
        device: number of the GPU.
        instance: number of the worker among those of its device.
        dead: whether the device did not answer the probe after a batch had failed; no further batch runs.
        on_ready: called in the event loop when a batch is done or has failed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, device: int = 0, instance: int = 0) -> None:
        """Start the worker's threads; `clock` measures when batches start and end."""
        self.device, self.instance = device, instance
        self.dead = False
        self.on_ready: Callable[[], None] = lambda: None
        # The running batch and those behind it, with their sessions and predicted seconds; a turn is an empty batch.
        self._batches: deque[tuple[Session | None, Batch, float]] = deque()
        self._clock = clock
        # The end of the last batch, and the predicted end of the running one.
        self._ended_s = self._predicted_end_s = 0.0
        self._lead_s = _LEAD_S
        self._thread = WorkerThread("device", clock)
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="packing")

    @property
    def _planned(self) -> Iterable[tuple[Session | None, Batch, float]]:
        """The batches behind the running one; another thread may read them."""
        return islice(self._batches.copy(), 1, None)

    def busy_s(self, now_s: float) -> float:
        """Return the predicted seconds until all batches of the worker are done; 0 for an idle worker."""
        if not self._batches:
            return 0.0
        running_s = max(_OVERDUE_S, self._predicted_end_s - now_s)
        return running_s + sum(predicted_s for _, _, predicted_s in self._planned)

    def wants_batch_in_s(self, now_s: float) -> float:
        """Return the seconds until the worker wants its next batch.

        Infinity if the worker wants no batch before the running batch is done.
        """
        if len(self._batches) >= _MAX_BATCHES:
            return float("inf")
        return max(0.0, self.busy_s(now_s) - self._lead_s)

    def run(self, session: Session, sequences: Batch, predicted_s: float) -> "asyncio.Future[BatchResult | None]":
        """Pack a batch, and run it in a session after the worker's earlier batches.

        Sequences that expired or were cancelled before the batch starts do not run.

        Returns:
            The result, or None if no sequence ran. The future fails with the error of the batch, with DeviceLost if the
            device died or hangs, or with NeverRan if it died or hung before the batch.
        """
        # A busy worker packs in a second thread. For an idle device, a second thread would only delay the batch.
        is_idle = not self._batches
        packing = None if is_idle else self._packing.submit(self._pack, session, sequences)
        self._batches.append((session, sequences, predicted_s))
        self._lead_s = _LEAD_S + _LEAD_TOKEN_S * sum(sequence.length_tokens for sequence in sequences)
        if is_idle:
            self._note_started(self._clock())
        limit_s = run_limit_s(predicted_s)
        return self._thread.run(self._run_batch, session, sequences, packing, limit_s=limit_s, then=self._note_done)

    def check_hung(self) -> None:
        """Give up the device if it hangs; the futures of its batches fail.

        Raises:
            DeviceLost: the device hangs.
        """
        hangs = DeviceLost(f"device {self.device} has not answered for much longer than predicted: check the device")
        if self._thread.check(hangs):
            raise hangs

    def _note_done(self) -> None:
        self._batches.popleft()
        if self._batches:
            self._note_started(self._ended_s)
        self.on_ready()

    def _note_started(self, started_s: float) -> None:
        _, sequences, predicted_s = self._batches[0]
        # Predict the end from the real start. With the predicted start, all ends predicted after a slow batch would be
        # too early.
        self._predicted_end_s = started_s + predicted_s
        for sequence in sequences:
            sequence.request.note_started(sequence)

    def turn(self, loop: asyncio.AbstractEventLoop, run: Callable[[], Result]) -> Result:
        """Run a function in the thread of the device, after the batches that wait, and return the function's result.

        Blocks the calling thread, which is not that of the event loop.

        Raises:
            DeviceLost: the function took too long.
            NeverRan: the device hung before, or the server has stopped.
        """
        return asyncio.run_coroutine_threadsafe(self._run_in_turn(run), loop).result()

    async def _run_in_turn(self, run: Callable[[], Result]) -> Result:
        self._batches.append((None, (), 0.0))
        return await self._thread.run(run, limit_s=_UNPREDICTED_LIMIT_S, then=self._note_done)

    async def close_session(self, session: Session) -> None:
        """Close a session that runs no batches any more, and free its memory."""
        with suppress(DeviceLost, NeverRan):
            await self._thread.run(session.close, limit_s=_UNPREDICTED_LIMIT_S)

    def close(self) -> None:
        """End the threads once the batches of the worker have run."""
        self._thread.close()
        self._packing.shutdown(wait=False, cancel_futures=True)

    def _pack(self, session: Session, sequences: Batch) -> _Packed:
        started_s = self._clock()
        packed = session.graph.prepare(pack([sequence.values for sequence in sequences]))
        return packed, Interval(started_s, self._clock())

    def _run_batch(self, session: Session, sequences: Batch, packing: "Future[_Packed] | None") -> BatchResult | None:
        if self.dead:
            raise NeverRan("the device died before it ran the batch")
        try:
            return self._run_wanted(session, sequences, packing)
        except Exception as error:
            # Before the next batch, which must not be blamed for the death of the device.
            self.dead = not session.answers_probe()
            if not self.dead:
                raise
            problem = f"device {self.device} died while it ran a batch ({one_line(error)}): check the device"
            raise DeviceLost(problem) from error

    def _run_wanted(self, session: Session, sequences: Batch, packing: "Future[_Packed] | None") -> BatchResult | None:
        """Run the sequences that have neither expired nor been cancelled."""
        try:
            packed, packed_in = packing.result() if packing else self._pack(session, sequences)
            started_s = self._clock()
            wanted = tuple(sequence for sequence in sequences if sequence.is_wanted(started_s))
            if not wanted:
                return None
            if len(wanted) < len(sequences):
                packed, packed_in = self._pack(session, wanted)
                started_s = self._clock()
            shape = shape_of(wanted)
            try:
                outputs = session.graph.run(packed, hidden=shape.hidden)
            finally:
                session.on_run(self._clock() - started_s)
            packed.inputs = None  # The results keep the batch, and the inputs may take much memory.
        finally:
            self._ended_s = self._clock()
        times = BatchTimes(packed_in, Interval(started_s, self._ended_s))
        if outputs.sparse is not None:
            outputs.pooled = None  # The results would keep all its zeros.
        return BatchResult(wanted, shape, packed, outputs, times, self.device)


class Devices:
    """The pool of workers that run the batches of all models."""

    def __init__(self, workers: Iterable[Worker], on_ready: Callable[[], None]) -> None:
        """Take over the workers; `on_ready` is called when a worker may want a batch."""
        self.workers = tuple(workers)
        for worker in self.workers:
            worker.on_ready = on_ready

    def busy_s(self, now_s: float, among: Container[Worker]) -> tuple[float, ...]:
        """Return the predicted seconds until each of these workers has run its batches."""
        return tuple(worker.busy_s(now_s) for worker in self.workers if worker in among)

    def next_worker(self, now_s: float, is_wanted: Callable[[Worker], bool]) -> Worker | None:
        """Return the first worker to be free of those that are wanted and want a batch now; None if there is none."""
        ready = [worker for worker in self.workers if worker.wants_batch_in_s(now_s) <= 0 and is_wanted(worker)]
        return min(ready, key=lambda worker: worker.busy_s(now_s), default=None)

    def wants_batch_in_s(self, now_s: float, is_wanted: Callable[[Worker], bool]) -> float:
        """Return the seconds until a worker that is wanted wants a batch; infinity if none does for now."""
        wants_in_s = (worker.wants_batch_in_s(now_s) for worker in self.workers if is_wanted(worker))
        return min(wants_in_s, default=float("inf"))

    async def watch(self) -> None:
        """Look for devices that hang, forever.

        Raises:
            DeviceLost: a device hangs.
        """
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            for worker in self.workers:
                worker.check_hung()

    def close(self) -> None:
        """End all workers once they have run the batches that they were given."""
        for worker in self.workers:
            worker.close()
