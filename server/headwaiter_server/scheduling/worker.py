"""Run batches on one device in a thread, and pack the next batch in a second thread meanwhile."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.queued_request import Batch, BatchTimes, Sequence, shape_of
from headwaiter_server.scheduling.stage_durations import Interval
from headwaiter_server.scheduling.watchdog import run_limit_s
from headwaiter_server.scheduling.worker_thread import NeverRan, ThreadHung, WorkerThread

# One batch runs while the next one is packed.
_MAX_BATCHES = 2
# A worker wants its next batch this long before the predicted end of the running batch: just enough time to plan and to
# pack, except for batches of tens of thousands of tokens. Planning earlier would miss requests that arrive meanwhile.
_LEAD_S = 0.002
# The predicted remaining time of a batch that already runs longer than predicted.
_OVERDUE_S = 0.001
# Opening a device again takes as long as the server's start: files are hashed, weights are loaded and full batches run.
_REOPEN_LIMIT_S = 600.0


class Device(Protocol):
    """Runs batches."""

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch with all that `run` needs; called while another thread runs another batch."""
        ...

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Run a batch, prepared or not; called from one thread at a time."""
        ...


# A packed batch, and when it was packed.
_Packed = tuple[PackedBatch, Interval]


class Worker:
    """Runs batches on a device, first in, first out.

    Attributes:
        alive: False from the death of the device until the device is open again.
        suspect: True from the failure of a batch until the device has answered a probe. A worker that is dead or
            suspect wants no batches.
        on_ready: called in the event loop when a batch or a probe is done or has failed.
    """

    def __init__(
        self,
        device: Device,
        reopen: Callable[[], Device],
        probe: PackedBatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the worker's threads.

        Args:
            device: runs the batches.
            reopen: returns a replacement for a dead device, checked and warm.
            probe: a batch for which a working device returns finite values.
            clock: measures when batches start and end.
        """
        self.alive = True
        self.suspect = False
        self.on_ready: Callable[[], None] = lambda: None
        # Batches behind the running one, with their predicted seconds.
        self._planned: deque[tuple[Batch, float]] = deque()
        self._device: Device | None = device
        self._reopen = reopen
        self._probe = probe
        self._clock = clock
        self._batch_count = 0
        # The end of the last batch, and the predicted end of the running one.
        self._ended_s = self._predicted_end_s = 0.0
        self._thread = WorkerThread("device", clock)
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="packing")

    @property
    def hung(self) -> bool:
        """Whether the device was given up because it hung; it cannot be reopened."""
        return self._thread.hung

    @property
    def planned_sequences(self) -> list[Sequence]:
        """The sequences of batches that wait behind the running one."""
        return [sequence for sequences, _ in self._planned.copy() for sequence in sequences]

    def busy_s(self, now_s: float) -> float:
        """Return the predicted seconds until all batches of the worker are done; 0 for an idle worker."""
        if not self._batch_count:
            return 0.0
        running_s = max(_OVERDUE_S, self._predicted_end_s - now_s)
        return running_s + sum(predicted_s for _, predicted_s in self._planned.copy())

    def wants_batch_in_s(self, now_s: float) -> float:
        """Return in how many seconds the worker wants its next batch.

        Infinity if the worker wants no batch before the running batch or probe is done.
        """
        if not self.alive or self.suspect or self._batch_count >= _MAX_BATCHES:
            return float("inf")
        return max(0.0, self.busy_s(now_s) - _LEAD_S)

    def run(self, sequences: Batch, predicted_s: float) -> "asyncio.Future[BatchResult | None]":
        """Pack a batch, and run it after the worker's earlier batches.

        Sequences that expired or were cancelled before the batch starts do not run.

        Returns:
            The result, or None if no sequence ran. The future fails with the device's error, with ThreadHung if the
            device hangs, or with NeverRan if the device died before.
        """
        # A busy worker packs in a second thread. For an idle device, a second thread would only delay the batch.
        packing = None
        if self._batch_count:
            packing = self._packing.submit(self._pack, sequences)
            self._planned.append((sequences, predicted_s))
        else:
            self._note_started(sequences, predicted_s, self._clock())
        self._batch_count += 1
        limit_s = run_limit_s(predicted_s)
        return self._thread.run(self._run_batch, sequences, packing, limit_s=limit_s, then=self._note_done)

    def check_hung(self) -> bool:
        """Give up the device if it hangs; return whether it was given up now.

        The futures of its batches fail. A thread cannot be ended, so a device that hangs is lost.
        """
        if not self._thread.check():
            return False
        self.on_ready()
        return True

    def _note_done(self) -> None:
        self._batch_count -= 1
        if self._planned:
            self._note_started(*self._planned.popleft(), self._ended_s)
        self.on_ready()

    def _note_started(self, sequences: Batch, predicted_s: float, started_s: float) -> None:
        # Predict the end from the real start. With the predicted start, all ends predicted after a slow batch would be
        # too early.
        self._predicted_end_s = started_s + predicted_s
        for sequence in sequences:
            sequence.request.not_started.discard(sequence)

    async def answers_probe(self) -> bool:
        """Run the probe, and return whether the device works."""
        try:
            works = await self._thread.run(self._run_probe, limit_s=run_limit_s(0.0))
        except (ThreadHung, NeverRan):
            works = False
        self.suspect = False
        self.on_ready()
        return works

    def mark_dead(self) -> None:
        """Take no batch until `reopen` succeeds; fail the batches that wait."""
        self.alive = False
        # A dead device may hold memory that its replacement needs.
        self._device = None

    async def reopen(self) -> None:
        """Try once to reopen the device; the worker is alive if this succeeds.

        Raises:
            Exception: any error of opening the device.
        """
        self._device = await self._thread.run(self._reopen, limit_s=_REOPEN_LIMIT_S)
        self.alive, self.suspect = True, False

    def close(self) -> None:
        """End the threads once the batches of the worker have run."""
        self._thread.close()
        self._packing.shutdown(wait=False, cancel_futures=True)

    def _pack(self, sequences: Batch) -> _Packed:
        started_s, device = self._clock(), self._device
        packed = pack([sequence.values for sequence in sequences])
        if device is not None:
            packed = device.prepare(packed)
        return packed, Interval(started_s, self._clock())

    def _run_batch(self, sequences: Batch, packing: "Future[_Packed] | None") -> BatchResult | None:
        try:
            packed, packed_in = packing.result() if packing else self._pack(sequences)
            if self._device is None:
                raise NeverRan("the device died before it ran the batch")
            started_s = self._clock()
            wanted = tuple(sequence for sequence in sequences if sequence.is_wanted(started_s))
            if not wanted:
                return None
            if len(wanted) < len(sequences):
                packed, packed_in = self._pack(wanted)
                started_s = self._clock()
            shape = shape_of(wanted)
            outputs = self._device.run(packed, hidden=shape.hidden)
            packed.inputs = None  # The results keep the batch, and the inputs may take much memory.
        finally:
            self._ended_s = self._clock()
        times = BatchTimes(packed_in, Interval(started_s, self._ended_s))
        return BatchResult(wanted, shape, packed, outputs, times)

    def _run_probe(self) -> bool:
        if self._device is None:
            return False
        try:
            outputs = self._device.run(self._probe, hidden=False)
        except Exception:  # noqa: BLE001 - any error means that the device does not work
            return False
        rows = [values for values in (outputs.pooled, outputs.hidden) if values is not None]
        return all(bool(np.isfinite(values).all()) for values in rows)
