"""One device: runs batches in threads of its own, keeps one ready ahead, and is reopened when it dies."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import numpy as np

from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.job import Sequence, Stamps

log = logging.getLogger(__name__)

# One batch runs and the next is packed.
_AT_ONCE = 2
# A device is given its next batch so long before it should be done with the last, to have it planned and packed in
# time; not earlier, as what comes meanwhile may make a better batch.
_LEAD_S = 0.002
# What is late should be done so soon.
_ANY_MOMENT_S = 0.001
# How long to wait after each try to reopen a device that died; a device that stays dead after the last is given up.
_REOPEN_AFTER_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class Device(Protocol):
    """What runs a batch; called from one thread at a time."""

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Run a packed batch."""
        ...


# A batch, and the seconds it took to put it together.
_Packing = Future[tuple[PackedBatch, float]]


@dataclass(eq=False, slots=True)
class Run:
    """A batch that has run.

    Attributes:
        sequences: those of it that were still wanted when it started.
        batch: as they were packed.
        outputs: the device's answer.
        stamps: its times.
    """

    sequences: tuple[Sequence, ...]
    batch: PackedBatch
    outputs: Outputs
    stamps: Stamps

    def deliver(self) -> list[Sequence]:
        """Give each sequence its own rows; return those whose rows are not finite, which get none."""
        pooled, hidden = self.outputs.pooled, self.outputs.hidden
        rows_of = None if hidden is None else self.batch.split(hidden)
        finite = None if pooled is None else np.logical_and.reduce(np.isfinite(pooled), axis=1)
        failed = []
        for place, sequence in enumerate(self.sequences):
            vector = None if pooled is None else pooled[place]
            rows = rows_of[place] if rows_of is not None and sequence.job.hidden else None
            if (finite is not None and not finite[place]) or (rows is not None and not np.isfinite(rows).all()):
                failed.append(sequence)
            else:
                sequence.job.deliver(sequence.index, vector, rows, self.stamps)
        return failed


class Worker:
    """Runs batches on a device, in the order they are given.

    Attributes:
        alive: whether it takes batches.
    """

    def __init__(
        self,
        device: Device,
        reopen: Callable[[], Device],
        probe: PackedBatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a device.

        Args:
            device: what runs batches.
            reopen: opens it anew, checked and warm, after it died.
            probe: a batch that a device in order answers with finite values.
            clock: of the stamps.
        """
        self.alive = True
        # What waits behind the batch that runs, with the seconds it should take.
        self._ahead: deque[tuple[tuple[Sequence, ...], float]] = deque()
        self._device: Device | None = device
        self._reopen = reopen
        self._probe = probe
        self._clock = clock
        self._inflight = 0
        # When the device was done with its last batch, and when it should be with the one that runs.
        self._done_s = self._expected_s = 0.0
        self._thread = _Thread("device")
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="packing")

    @property
    def ahead(self) -> tuple[Sequence, ...]:
        """The sequences of batches that wait behind the one that runs."""
        return tuple(chain.from_iterable(sequences for sequences, _ in self._ahead))

    def busy_s(self, now_s: float) -> float:
        """Return how long what it was given should still take; 0 where it has nothing to do."""
        if not self._inflight:
            return 0.0
        return max(_ANY_MOMENT_S, self._expected_s - now_s) + sum(expected_s for _, expected_s in self._ahead)

    def wants_next_in_s(self, now_s: float) -> float:
        """Return in how many seconds to give it its next batch; infinity where that hangs on other things than time."""
        if not self.alive or self._inflight >= _AT_ONCE:
            return float("inf")
        return max(0.0, self.busy_s(now_s) - _LEAD_S)

    def give(self, sequences: tuple[Sequence, ...], expected_s: float) -> "asyncio.Future[Run | None]":
        """Pack sequences and run them when what was given before has run, less those that nobody wants by then.

        Returns:
            What ran, if anything did; it fails with whatever the device raises, and with DeviceLost where that died
            meanwhile.
        """
        # A batch is packed beside the one that runs; an idle device is not kept waiting for a second thread.
        packed = None
        if self._inflight:
            packed = self._packing.submit(self._pack, sequences)
            self._ahead.append((sequences, expected_s))
        else:
            self._note_started(sequences, expected_s, self._clock())
        self._inflight += 1
        run = self._thread.do(self._compute, sequences, packed)
        run.add_done_callback(self._note_done)
        return run

    def _note_done(self, _: "asyncio.Future[Run | None]") -> None:
        self._inflight -= 1
        if self._ahead:
            self._note_started(*self._ahead.popleft(), self._done_s)

    def _note_started(self, sequences: tuple[Sequence, ...], expected_s: float, started_s: float) -> None:
        # Not by when it should have started: one batch that is late would make all that follow late too.
        self._expected_s = started_s + expected_s
        for sequence in sequences:
            sequence.job.waiting.discard(sequence)

    async def answers(self) -> bool:
        """Tell whether the device is in order: then a batch that failed has a sequence to blame."""
        return await self._thread.do(self._answers)

    async def reopen(self) -> None:
        """Open the device anew, and be alive again.

        Raises:
            DeviceLost: it stays dead.
        """
        # What is dead may hold memory that its successor needs.
        self._device = None
        why = ""
        for wait_s in _REOPEN_AFTER_S:
            await asyncio.sleep(wait_s)
            try:
                self._device = await self._thread.do(self._reopen)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may succeed
                # Not the error itself is kept: what was opened would stay with it.
                why = " ".join(str(error).split())
                log.warning("the device cannot be reopened: %s", why)
            else:
                self.alive = True
                return
        raise DeviceLost(f"the device died and cannot be reopened: {why}")

    def close(self) -> None:
        """Take no more work; what runs may still run."""
        self._thread.close()
        self._packing.shutdown(wait=False, cancel_futures=True)

    def _pack(self, sequences: tuple[Sequence, ...]) -> tuple[PackedBatch, float]:
        started_s = self._clock()
        packed = pack([sequence.values for sequence in sequences])
        return packed, self._clock() - started_s

    def _compute(self, sequences: tuple[Sequence, ...], packing: "_Packing | None") -> Run | None:
        began_s = self._done_s if packing else self._clock()
        try:
            packed, assemble_s = packing.result() if packing else self._pack(sequences)
            if self._device is None:
                raise DeviceLost("the device died before the batch's turn")
            started_s = self._clock()
            wanted = tuple(each for each in sequences if each.is_wanted(started_s))
            if not wanted:
                return None
            if len(wanted) < len(sequences):
                packed, assemble_s = self._pack(wanted)
                started_s = self._clock()
            outputs = self._device.run(packed, hidden=any(sequence.job.hidden for sequence in wanted))
        finally:
            self._done_s = self._clock()
        compute_s, device_s = self._done_s - started_s, self._done_s - began_s
        return Run(wanted, packed, outputs, Stamps(assemble_s, compute_s, self._done_s, device_s))

    def _answers(self) -> bool:
        if self._device is None:
            return False
        try:
            outputs = self._device.run(self._probe, hidden=False)
        except Exception:  # noqa: BLE001 - that it raises is the answer
            return False
        given = [values for values in (outputs.pooled, outputs.hidden) if values is not None]
        return all(bool(np.isfinite(values).all()) for values in given)


_Result = TypeVar("_Result")


class _Thread:
    """Does one thing after the other, and hands each result to the event loop in one step.

    An executor takes several: its own future, asyncio's, and what passes between the two.
    """

    def __init__(self, name: str) -> None:
        self._acts: SimpleQueue[_Act | None] = SimpleQueue()
        # What an unclosed thread waits for must not keep the process.
        Thread(target=self._do_all, name=name, daemon=True).start()

    def do(self, act: Callable[..., _Result], *arguments: object) -> "asyncio.Future[_Result]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        self._acts.put((loop, future, act, arguments))
        return future

    def close(self) -> None:
        """End when all is done that was asked for."""
        self._acts.put(None)

    def _do_all(self) -> None:
        while (asked := self._acts.get()) is not None:
            loop, future, act, arguments = asked
            result = error = None
            try:
                result = act(*arguments)
            except Exception as raised:  # noqa: BLE001 - it is for whoever asked
                error = raised
            # A loop that is closed has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, result, error)
            # Until the next is asked for, nothing of this one is kept.
            del asked, future, act, arguments, result, error


_Act = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[object, ...]]


def _settle(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(result)
