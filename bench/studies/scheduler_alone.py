"""The scheduler alone: its CPU time for each sequence, on a device that computes nothing."""

import asyncio
import gc
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.processes import SERVER_CORE, in_new_process, pin
from bench.rounds import Rounds
from bench.run import Run
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.job import Job
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.planner import CloseReason
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Session, Worker

MODELS, CALLERS = (1, 10, 100), (64, 1_024, 4_096)
# Numbers of callers of one model whose sequences wait, for the comparison of a short queue with a long one.
FEW_WAITING, MANY_WAITING = 1_000, 100_000
LENGTH_TOKENS, _WIDTH = 20, 384
_TOKENS_PER_S = 2e6
COST = CostModel(launch_s=1e-4, token_s=1 / _TOKENS_PER_S, padded_s=0.0, cell_s=0.0, variable_length=True)
LIMITS = BatchLimits(tokens=65_536, cells=1 << 40)
# The number of sequences that fill a batch at the token limit.
_FULL_BATCH = LIMITS.tokens // LENGTH_TOKENS
QUEUE_LIMITS = QueueLimits(tokens=1 << 40, wait_s=3600.0)
_RUN_S = 1.5
# Every caller is answered at least this often in the warm-up and in the measured time.
_LEAST_ANSWERS = 2
# That of the server, see headwaiter_server.processes.interpreter.
GC_THRESHOLD_OBJECTS = 10_000


@dataclass(frozen=True)
class SchedulerCost:
    """CPU microseconds per sequence of a process that holds callers, scheduler and device, and its sequences/s.

    A batch has at most `largest_batch` sequences.
    """

    models: int
    callers: int
    largest_batch: int
    cpu_us: Rounds
    sequences_per_s: Rounds
    sequences_per_batch: Rounds


def scheduler_alone(run: Run) -> list[SchedulerCost]:
    """Measure each number of models and of callers; each caller has one sequence in the scheduler.

    More models have smaller batches, because a batch has sequences of one model. So measure one model with batches as
    small as those of several models, too.
    """
    loads = [(models, callers, _FULL_BATCH) for models in MODELS for callers in CALLERS]
    loads += [(1, callers, _batch_size(models, callers)) for models in MODELS[1:] for callers in CALLERS]
    loads += [(1, FEW_WAITING, _FULL_BATCH), (1, MANY_WAITING, _FULL_BATCH)]
    costs = {load: SchedulerCost(*load, Rounds(), Rounds(), Rounds()) for load in loads}
    for _ in range(run.sizes.rounds):
        for load, cost in costs.items():
            figures = in_new_process(__name__, "measure", *load)
            for rounds, figure in zip(
                (cost.cpu_us, cost.sequences_per_s, cost.sequences_per_batch), figures, strict=True
            ):
                rounds.append(figure)
    findings = run.figures.findings.of_part("scheduler alone")
    for callers in CALLERS:
        one = costs[1, callers, _FULL_BATCH].cpu_us
        findings.require(f"CPU time with {callers:,} callers, µs per sequence", one, "≤", 60.0)
        for models, bound in zip(MODELS[1:], (1.2, 1.5), strict=True):
            several = costs[models, callers, _FULL_BATCH].cpu_us
            same_batches = costs[1, callers, _batch_size(models, callers)].cpu_us
            name = f"CPU time with {callers:,} callers: {models} models / 1 model"
            findings.require(name, several / one, "≤", bound)
            findings.require(f"{name}, batches of the same size", several / same_batches, "≤", bound)
    ratio = costs[1, MANY_WAITING, _FULL_BATCH].cpu_us / costs[1, FEW_WAITING, _FULL_BATCH].cpu_us
    findings.require(f"CPU time: {MANY_WAITING:,} / {FEW_WAITING:,} waiting sequences", ratio, "≤", 1.2)
    return list(costs.values())


def _batch_size(models: int, callers: int) -> int:
    """Return how many sequences of one model wait at a time: those of its callers."""
    return max(1, callers // models)


def measure(models: int, callers: int, largest_batch: int) -> tuple[float, float, float]:
    """Return CPU microseconds per sequence, sequences/s and sequences per batch, on one core of this process."""
    pin(SERVER_CORE)
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    return asyncio.run(_measure(models, callers, largest_batch))


async def _measure(models: int, callers: int, largest_batch: int) -> tuple[float, float, float]:
    worker = Worker()
    scheduler = Scheduler([worker], QUEUE_LIMITS)
    session = Session(SleepingDevice(), pack([np.zeros(1, np.int64)]))
    observer, limits = BatchCounter(), BatchLimits(largest_batch * LENGTH_TOKENS, LIMITS.cells)
    queues = [scheduler.add_model({worker: session}, COST, limits, observer) for _ in range(models)]
    load = _Load()
    calls = [asyncio.create_task(load.call(scheduler, queues[caller % models])) for caller in range(callers)]
    await load.run(callers)
    gc.collect()
    gc.freeze()
    cpu_s, started_s, answers, batches = time.process_time(), time.perf_counter(), load.answers, observer.batches
    await load.run(callers)
    cpu_s, run_s = time.process_time() - cpu_s, time.perf_counter() - started_s
    sequences, batches = load.answers - answers, observer.batches - batches
    load.stopped = True
    await asyncio.gather(*calls)
    await scheduler.drain(10.0)
    return cpu_s / sequences * 1e6, sequences / run_s, sequences / batches


class _Load:
    """Callers that send one sequence at a time.

    Attributes:
        answers: number of answers.
        stopped: whether the callers send no further sequence.
    """

    def __init__(self) -> None:
        self.answers, self.stopped = 0, False

    async def call(self, scheduler: Scheduler, queue: ModelQueue) -> None:
        """Send sequences until the load is stopped."""
        values: list[NDArray[np.generic]] = [np.zeros(LENGTH_TOKENS, np.int64)]
        while not self.stopped:
            await scheduler.submit(queue, Job(values))
            self.answers += 1

    async def run(self, callers: int) -> None:
        """Wait until the callers have run for a while, and have been answered a few times."""
        end_s, answers = time.perf_counter() + _RUN_S, self.answers + _LEAST_ANSWERS * callers
        while time.perf_counter() < end_s or self.answers < answers:  # noqa: ASYNC110 - an event costs each answer time
            await asyncio.sleep(0.05)


class SleepingDevice:
    """Runs 2 million tokens/s without computing; see `EncoderGraph`."""

    def __init__(self) -> None:
        self._pooled = np.zeros((LIMITS.tokens, _WIDTH), np.float32)

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch."""
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        """Sleep as long as the batch takes."""
        time.sleep(batch.tokens / _TOKENS_PER_S)
        return GraphOutputs(self._pooled[: batch.sequences], None)


class BatchCounter:
    """Counts the batches that ran, and their sequences."""

    def __init__(self) -> None:
        self.batches = self.sequences = 0

    def batch_planned(self, reason: CloseReason) -> None:
        """Count nothing."""

    def batch_failed(self, cause: FailureCause) -> None:
        """Count nothing."""

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.sequences += shape.sequences

    def device_ran(self, device: int, seconds: float) -> None:
        """Count nothing."""

    def expired(self, sequences: int) -> None:
        """Count nothing."""
