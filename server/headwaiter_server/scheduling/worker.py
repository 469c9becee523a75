"""Run the batches of all models on one device in a thread, and pack the next batch in a second thread meanwhile."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from headwaiter_server.concurrency.watchdog import run_limit_s
from headwaiter_server.concurrency.worker_thread import NeverRan, ThreadHung, WorkerThread
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.queued_request import Batch, BatchTimes, Interval, Sequence, shape_of

# One batch runs while the next one is packed.
_MAX_BATCHES = 2
# A worker wants its next batch this long before the predicted end of the running batch: just enough time to plan and to
# pack, except for batches of tens of thousands of tokens. Planning earlier would miss requests that arrive meanwhile.
_LEAD_S = 0.002
# The predicted remaining time of a batch that already runs longer than predicted.
_OVERDUE_S = 0.001
# Opening a device again takes as long as the server's start: files are hashed, weights are loaded and full batches run.
_REOPEN_LIMIT_S = 600.0
# A batch of a model that is being loaded may take this long; its duration is not known yet.
_TURN_LIMIT_S = 120.0


class Graph(Protocol):
    """Runs the batches of one model on one device."""

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch with all that `run` needs; called while another thread runs another batch."""
        ...

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Run a batch, which need not be prepared; called from one thread at a time."""
        ...


@dataclass(eq=False, slots=True)
class Session:
    """A model on one device.

    Attributes:
        graph: runs the batches; None while the device is dead, and in a closed session.
        reopen: returns a replacement for the graph of a dead device, checked and warm.
        probe: a batch for which a working device returns finite values.
        closed: whether the session is closed for good.
    """

    graph: Graph | None
    reopen: Callable[[], Graph]
    probe: PackedBatch
    closed: bool = False


# A packed batch, and when it was packed.
_Packed = tuple[PackedBatch, Interval]


class Worker:
    """Runs batches on a device, first in, first out; each batch in the session of its model.

    Attributes:
        device: number of the GPU.
        instance: number of the worker among those of its device.
        alive: False from the death of the device until the device is open again.
        suspect: True from the failure of a batch until the device has answered a probe. A worker that is dead or
            suspect wants no batches.
        on_ready: called in the event loop when a batch or a probe is done or has failed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, device: int = 0, instance: int = 0) -> None:
        """Start the worker's threads; `clock` measures when batches start and end."""
        self.device, self.instance = device, instance
        self.alive = True
        self.suspect = False
        self.on_ready: Callable[[], None] = lambda: None
        # The running batch and those behind it, with their sessions and predicted seconds; a turn is an empty batch.
        self._batches: deque[tuple[Session | None, Batch, float]] = deque()
        self._clock = clock
        # The end of the last batch, and the predicted end of the running one.
        self._ended_s = self._predicted_end_s = 0.0
        self._thread = WorkerThread("device", clock)
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="packing")

    @property
    def hung(self) -> bool:
        """Whether the device was given up because it hung; it cannot be reopened."""
        return self._thread.hung

    @property
    def _planned(self) -> Iterable[tuple[Session | None, Batch, float]]:
        """The batches behind the running one; another thread may read them."""
        return islice(self._batches.copy(), 1, None)

    def planned_sequences(self, session: Session) -> list[Sequence]:
        """Return the sequences of a session that wait behind the running batch; not those of answered requests."""
        return [
            sequence
            for planned_session, sequences, _ in self._planned
            if planned_session is session
            for sequence in sequences
            if not sequence.request.answer.done()
        ]

    def busy_s(self, now_s: float) -> float:
        """Return the predicted seconds until all batches of the worker are done; 0 for an idle worker."""
        if not self._batches:
            return 0.0
        running_s = max(_OVERDUE_S, self._predicted_end_s - now_s)
        return running_s + sum(predicted_s for _, _, predicted_s in self._planned)

    def wants_batch_in_s(self, now_s: float) -> float:
        """Return the seconds until the worker wants its next batch.

        Infinity if the worker wants no batch before the running batch or probe is done.
        """
        if not self.alive or self.suspect or len(self._batches) >= _MAX_BATCHES:
            return float("inf")
        return max(0.0, self.busy_s(now_s) - _LEAD_S)

    def run(self, session: Session, sequences: Batch, predicted_s: float) -> "asyncio.Future[BatchResult | None]":
        """Pack a batch, and run it in a session after the worker's earlier batches.

        Sequences that expired or were cancelled before the batch starts do not run.

        Returns:
            The result, or None if no sequence ran. The future fails with the device's error, with ThreadHung if the
            device hangs, or with NeverRan if the device died before.
        """
        # A busy worker packs in a second thread. For an idle device, a second thread would only delay the batch.
        is_idle = not self._batches
        packing = None if is_idle else self._packing.submit(self._pack, session, sequences)
        self._batches.append((session, sequences, predicted_s))
        if is_idle:
            self._note_started(self._clock())
        limit_s = run_limit_s(predicted_s)
        return self._thread.run(self._run_batch, session, sequences, packing, limit_s=limit_s, then=self._note_done)

    def check_hung(self) -> bool:
        """Give up the device if it hangs; return whether it was given up now.

        The futures of its batches fail. A thread cannot be ended, so a device that hangs is lost.
        """
        if not self._thread.check():
            return False
        self._batches.clear()
        self.on_ready()
        return True

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
            sequence.request.not_started.discard(sequence)

    async def answers_probe(self, session: Session) -> bool:
        """Run the probe of a session, and return whether the device works."""
        try:
            works = await self._thread.run(_run_probe, session, limit_s=run_limit_s(0.0))
        except (ThreadHung, NeverRan):
            works = False
        self.suspect = False
        self.on_ready()
        return works

    def mark_dead(self, sessions: Iterable[Session]) -> None:
        """Take no batches until `reopen` succeeds, and do not run the waiting batches; free the device's sessions."""
        self.alive = False
        for session in sessions:
            # A dead device may hold memory that its replacement needs.
            session.graph = None

    async def reopen(self, sessions: Collection[Session]) -> None:
        """Try once to reopen the sessions of the device; the worker is alive if this succeeds.

        Raises:
            Exception: any error of opening a session.
        """
        for session in sessions:
            if session.graph is None and not session.closed:
                session.graph = await self._thread.run(session.reopen, limit_s=_REOPEN_LIMIT_S)
        self.alive, self.suspect = True, False

    def turn(self, loop: asyncio.AbstractEventLoop, run: Callable[[], float]) -> float:
        """Run a function in the thread of the device, after the batches that wait, and return the function's result.

        Blocks the calling thread, which is not that of the event loop.

        Raises:
            ThreadHung: the function took too long.
            NeverRan: the device hangs.
        """
        return asyncio.run_coroutine_threadsafe(self._run_in_turn(run), loop).result()

    async def _run_in_turn(self, run: Callable[[], float]) -> float:
        self._batches.append((None, (), 0.0))
        return await self._thread.run(run, limit_s=_TURN_LIMIT_S, then=self._note_done)

    async def close_session(self, session: Session) -> None:
        """Close a session that runs no batches any more, and free its memory."""
        session.closed = True
        # In the worker's thread, because that takes a while. The thread of a lost device has ended, or hangs.
        with suppress(ThreadHung, NeverRan):
            await self._thread.run(_close, session, limit_s=_REOPEN_LIMIT_S)
        session.graph = None

    def close(self) -> None:
        """End the threads once the batches of the worker have run."""
        self._thread.close()
        self._packing.shutdown(wait=False, cancel_futures=True)

    def _pack(self, session: Session, sequences: Batch) -> _Packed:
        started_s, graph = self._clock(), session.graph
        packed = pack([sequence.values for sequence in sequences])
        if graph is not None:
            packed = graph.prepare(packed)
        return packed, Interval(started_s, self._clock())

    def _run_batch(self, session: Session, sequences: Batch, packing: "Future[_Packed] | None") -> BatchResult | None:
        try:
            packed, packed_in = packing.result() if packing else self._pack(session, sequences)
            if session.graph is None:
                raise NeverRan("the device died before it ran the batch")
            started_s = self._clock()
            wanted = tuple(sequence for sequence in sequences if sequence.is_wanted(started_s))
            if not wanted:
                return None
            if len(wanted) < len(sequences):
                packed, packed_in = self._pack(session, wanted)
                started_s = self._clock()
            shape = shape_of(wanted)
            outputs = session.graph.run(packed, hidden=shape.hidden)
            packed.inputs = None  # The results keep the batch, and the inputs may take much memory.
        finally:
            self._ended_s = self._clock()
        times = BatchTimes(packed_in, Interval(started_s, self._ended_s))
        return BatchResult(wanted, shape, packed, outputs, times)


def _run_probe(session: Session) -> bool:
    if session.graph is None:
        return False
    try:
        outputs = session.graph.run(session.probe, hidden=False)
    except Exception:  # noqa: BLE001 - any error means that the device does not work
        return False
    rows = [values for values in (outputs.pooled, outputs.hidden, *(outputs.logits or ())) if values is not None]
    return all(bool(np.isfinite(values).all()) for values in rows)


def _close(session: Session) -> None:
    session.graph = None
