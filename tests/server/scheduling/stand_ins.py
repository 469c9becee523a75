"""A scheduler, and all that it depends on in a test's hand."""

import asyncio
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.job import Outcome, Sequence
from headwaiter_server.scheduling.planner import Closed
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker

LIMITS = BatchLimits(tokens=8, cells=1000)
COST = CostModel(launch_s=0.5, token_s=0.25, padded_s=0.0, cell_s=0.0)
QUEUE = QueueLimits(tokens=64, wait_s=1000.0)
# Values that the model raises on, answers with an infinity to, and has infinite hidden rows for.
POISON, INFINITE, INFINITE_HIDDEN = 666, 777, 888
# What a device in order always answers; not part of what a test counts.
PROBE = pack([np.array([0])])
FREELY = 1000


class Device:
    """Answers with the sum of a sequence and with its values halved; raises on poison.

    Attributes:
        batches: the sequences of each batch it was given.
        pools: whether it gives pooled vectors.
        dead: whether it fails whatever it is given.
        chokes: whether it fails every batch that counts.
        probes_left: after how many probes it is dead.
    """

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.pools = True
        self.dead = self.chokes = False
        self.probes_left = FREELY
        self._allowed = threading.Semaphore(FREELY)
        self._entered = threading.Semaphore(0)

    def hold(self) -> None:
        """Let batches wait on the device from now on."""
        self._allowed, self._entered = threading.Semaphore(0), threading.Semaphore(0)

    async def busy(self) -> None:
        """Return once a batch has come to the device, after what `busy` has seen already."""
        await asyncio.to_thread(self._entered.acquire)

    def busy_now(self) -> None:
        """Do the same, while the event loop stands still."""
        assert self._entered.acquire(timeout=30.0)

    def release(self, batches: int = FREELY) -> None:
        """Let so many batches run."""
        self._allowed.release(batches)

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        if batch is PROBE:
            self.dead |= self.probes_left == 0
            self.probes_left -= 1
        else:
            self.batches.append([part.tolist() for part in batch.split(batch.rows)])
            self._entered.release()
            self._allowed.acquire()
        if self.dead:
            raise OSError("the card fell off the bus")
        if POISON in batch.rows or (self.chokes and batch is not PROBE):
            raise RuntimeError("the model chokes")
        rows = batch.rows.astype(np.float32)
        rows[rows == INFINITE] = np.inf
        pooled = np.array([[part.sum()] for part in batch.split(rows)], np.float32)
        rows[rows == INFINITE_HIDDEN] = np.inf
        return Outputs(pooled if self.pools else None, rows[:, None] / 2 if hidden else None)


class Log:
    """What the scheduler told its observer."""

    def __init__(self) -> None:
        self.ran_tokens: list[int] = []
        self.closed: list[Closed] = []
        self.expired_sequences = 0

    def batch_closed(self, reason: Closed) -> None:
        self.closed.append(reason)

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        self.ran_tokens.append(shape.tokens)

    def expired(self, sequences: int) -> None:
        self.expired_sequences += sequences


class Clock:
    """Stands still until a test moves it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A scheduler, and all that it depends on in a test's hand."""

    def __init__(self, limits: BatchLimits = LIMITS) -> None:
        self.device, self.log, self.clock = Device(), Log(), Clock()
        self.available: list[bool] = []
        self.back = asyncio.Event()
        self.reopened = Device()
        self.workers = [Worker(self.device, self.reopen, PROBE, self.clock)]
        self.scheduler = Scheduler(self.workers, COST, limits, QUEUE, self.log, self.note_available, self.clock)

    @property
    def ahead(self) -> list[Sequence]:
        """The sequences of the batch that waits behind the one on the device."""
        return list(self.workers[0].ahead)

    def note_available(self, available: bool) -> None:
        self.available.append(available)
        if available:
            self.back.set()

    def reopen(self) -> Device:
        """Open the device anew, as another."""
        if self.reopened.dead:
            raise OSError("there is no card")
        return self.reopened

    def submit(self, *sequences: list[int], **options: Any) -> asyncio.Task[Outcome]:
        values: list[NDArray[np.generic]] = [np.array(sequence) for sequence in sequences]
        return asyncio.create_task(self.scheduler.submit(values, **{"hidden": False, **options}))

    async def submit_behind(self, *requests: list[list[int]]) -> list[asyncio.Task[Outcome]]:
        """Queue requests while another one is held on the device."""
        self.device.hold()
        ahead = self.submit([1])
        await self.device.busy()
        tasks = [self.submit(*request) for request in requests]
        await asyncio.sleep(0)
        return [ahead, *tasks]


def sums(outcome: Outcome) -> list[float]:
    """What a request was answered, by sequence."""
    assert outcome.pooled is not None
    return [float(vector[0]) for vector in outcome.pooled]


def halves(outcome: Outcome) -> list[list[float]]:
    """The hidden rows of a request, by sequence."""
    assert outcome.hidden is not None
    return [rows[:, 0].tolist() for rows in outcome.hidden]
