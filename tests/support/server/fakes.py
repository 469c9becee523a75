"""A scheduler with a fake device, observer and clock, all controlled by the test."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.job import Job, Outcome
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.planner import CloseReason
from headwaiter_server.scheduling.queued_request import Sequence
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Session, Worker

LIMITS = BatchLimits(tokens=8, cells=1000)
COST = CostModel(launch_s=0.5, token_s=0.25, padded_s=0.0, cell_s=0.0)
QUEUE = QueueLimits(tokens=64, wait_s=1000.0)
# Token ids for which the fake device raises, answers with infinity, answers with infinite hidden rows, dies and hangs.
POISON, INFINITE, INFINITE_HIDDEN, KILL, HANG = 666, 777, 888, 555, 999
# The batch that a working device always answers; FakeDevice.batches leaves it out.
PROBE = pack([np.array([0])])
UNLIMITED = 1000


class FakeDevice:
    """Answers with the sum of each sequence (pooled) and with half of each value (hidden); raises on poison.

    Attributes:
        batches: the sequences of each batch that ran, without probes.
        prepared_tokens: the tokens of each batch that was prepared.
        dead: whether the device fails every batch and every probe.
        fails_batches: whether the device fails every batch but no probe.
        most_tokens: the device fails batches of more tokens, because they do not fit in its memory.
        probes_left: number of probes after which the device is dead.
        hangs_on_probe: whether a probe hangs.
        resumed: set to end what hangs.
    """

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.prepared_tokens: list[int] = []
        self.dead = self.fails_batches = self.hangs_on_probe = False
        self.resumed = threading.Event()
        self.most_tokens = UNLIMITED
        self.probes_left = UNLIMITED
        self._allowed = threading.Semaphore(UNLIMITED)
        self._entered = threading.Semaphore(0)

    def hold(self) -> None:
        """Hold each further batch on the device until `release` is called."""
        self._allowed, self._entered = threading.Semaphore(0), threading.Semaphore(0)

    async def busy(self) -> None:
        """Wait until the device has a batch; each call waits for one more batch."""
        await asyncio.to_thread(self._entered.acquire)

    def busy_now(self) -> None:
        """Wait like `busy`, but block the event loop."""
        assert self._entered.acquire(timeout=30.0)

    def release(self, batches: int = UNLIMITED) -> None:
        """Let this number of held batches run."""
        self._allowed.release(batches)

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        self.prepared_tokens.append(batch.tokens)
        return replace(batch, inputs={"rows": batch.rows})

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if HANG in batch.rows or (self.hangs_on_probe and batch is PROBE):
            self.resumed.wait(60)
        self.dead |= KILL in batch.rows
        if batch is PROBE:
            self.dead |= self.probes_left == 0
            self.probes_left -= 1
        else:
            assert batch.inputs is not None
            self.batches.append([part.tolist() for part in batch.split(batch.inputs["rows"])])
            self._entered.release()
            self._allowed.acquire()
        if self.dead:
            raise OSError("the GPU fell off the bus")
        if batch.tokens > self.most_tokens:
            raise RuntimeError("out of memory")
        if POISON in batch.rows or (self.fails_batches and batch is not PROBE):
            raise RuntimeError("the model failed")
        rows = batch.rows.astype(np.float32)
        rows[rows == INFINITE] = np.inf
        pooled = np.array([[part.sum()] for part in batch.split(rows)], np.float32)
        rows[rows == INFINITE_HIDDEN] = np.inf
        return GraphOutputs(pooled, rows[:, None] / 2 if hidden else None)


class FakeObserver:
    """Records the events of batches."""

    def __init__(self) -> None:
        self.ran_tokens: list[int] = []
        self.close_reasons: list[CloseReason] = []
        self.failure_causes: list[FailureCause] = []
        self.expired_sequences = 0
        self.busy_s = 0.0

    def batch_planned(self, reason: CloseReason) -> None:
        self.close_reasons.append(reason)

    def batch_failed(self, cause: FailureCause) -> None:
        self.failure_causes.append(cause)

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float) -> None:
        self.ran_tokens.append(shape.tokens)

    def device_ran(self, device: int, seconds: float) -> None:
        self.busy_s += seconds

    def expired(self, sequences: int) -> None:
        self.expired_sequences += sequences


class ManualClock:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Harness:
    """A scheduler with one model on fake devices, an observer and a clock; `device` is the first device."""

    def __init__(self, limits: BatchLimits = LIMITS, *, devices: int = 1, observer: FakeObserver | None = None) -> None:
        self.devices = [FakeDevice() for _ in range(devices)]
        self.device, self.observer, self.clock = self.devices[0], observer or FakeObserver(), ManualClock()
        sessions = {Worker(self.clock): Session(device, PROBE) for device in self.devices}
        self.scheduler = Scheduler(sessions, QUEUE, self.clock)
        self.queue = self.scheduler.add_model(sessions, COST, limits, self.observer)

    @property
    def batches(self) -> list[list[list[int]]]:
        """The batches of all devices."""
        return [batch for device in self.devices for batch in device.batches]

    @property
    def planned(self) -> list[Sequence]:
        """The sequences of the batch that waits behind the running batch."""
        (worker,) = self.queue.sessions
        return [sequence for _, batch, _ in worker._planned for sequence in batch if not sequence.request.answer.done()]

    def submit(self, *sequences: list[int], **options: Any) -> asyncio.Task[Outcome]:
        values: list[NDArray[np.generic]] = [np.array(sequence) for sequence in sequences]
        return asyncio.create_task(self.scheduler.submit(self.queue, Job(values, **options)))

    async def submit_behind_held_batch(self, *requests: list[list[int]]) -> list[asyncio.Task[Outcome]]:
        """Submit the request [[1]] and hold it on the device, then queue requests behind it."""
        self.device.hold()
        held = self.submit([1])
        await self.device.busy()
        tasks = [self.submit(*request) for request in requests]
        await asyncio.sleep(0)
        return [held, *tasks]


async def drain(scheduler: Scheduler) -> None:
    """Drain a scheduler whose loop must not have failed, except because of a dead device."""
    await scheduler.drain(30.0)
    with suppress(asyncio.CancelledError, DeviceLost):  # An earlier drain of the test may have ended the loop.
        await scheduler.failed()


def sums(outcome: Outcome) -> list[float]:
    """Return the pooled answer of each sequence, the sum of its values."""
    assert outcome.pooled is not None
    return [float(vector[0]) for vector in outcome.pooled]


def halves(outcome: Outcome) -> list[list[float]]:
    """Return the hidden rows of each sequence, which are half of its values."""
    assert outcome.hidden is not None
    return [rows[:, 0].tolist() for rows in outcome.hidden]
