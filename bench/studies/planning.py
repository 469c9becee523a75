"""The planner alone: its CPU time for each sequence, and one long sequence among many short ones."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.loads.traces import MEDIAN_30
from bench.processes import SERVER_CORE, memory_mib, pin
from bench.run import Run
from bench.studies.ceiling import in_process_s
from bench.studies.in_process import Planner, pending_of, waiting
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

WAITING = (100, 1_000, 10_000, 100_000)
_MIN_PLANNED = 5_000
# Lengths of the long part and of the short part.
MIXES = (([200], [1] * 150), ([512], [1] * 2000))
ROUNDS = 5


@dataclass(frozen=True)
class PlanningCost:
    """CPU microseconds per sequence to plan a batch and take it out of the queue, and to add to the queue."""

    waiting: int
    plan_us: float
    add_us: float


def planning_costs(run: Run) -> list[PlanningCost]:
    """Measure each number of waiting sequences; a new sequence replaces each planned one."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner, vocabulary_size = Planner(model), model.bundle.manifest.vocabulary_size
    costs = [_planning_cost(count, planner, vocabulary_size) for count in WAITING]
    for cost in costs:
        findings = run.figures.findings.of_part(f"{cost.waiting:,} sequences waiting")
        findings.require("CPU time to plan, µs per sequence", cost.plan_us, "≤", 10.0)
    return costs


def _planning_cost(count: int, planner: Planner, vocabulary_size: int) -> PlanningCost:
    pending = pending_of(MEDIAN_30.trace(count, vocabulary_size).sequences)
    plan_s = add_s = 0.0
    planned = 0
    while planned < _MIN_PLANNED:
        started_s = time.process_time()
        batch = planner.take(pending)
        planned_s = time.process_time()
        for sequence in batch:
            pending.add(waiting(sequence.values))
        plan_s += planned_s - started_s
        add_s += time.process_time() - planned_s
        planned += len(batch)
    return PlanningCost(count, plan_s / planned * 1e6, add_s / planned * 1e6)


@dataclass(frozen=True)
class MixedShapes:
    """Milliseconds and peak MiB to plan and run a mix in process: both parts together, and one after the other."""

    mix: str
    apart_ms: float
    apart_mib: float
    together_ms: float
    together_mib: float

    @property
    def ratio(self) -> float:
        """Together / apart."""
        return self.together_ms / self.apart_ms


def mixed_shapes(_: Run) -> list[MixedShapes]:
    """Measure each mix, apart and together."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner = Planner(model)
    measured = []
    for long, short in MIXES:
        apart = _time_parts([long, short], model.graph, planner)
        together = _time_parts([long + short], model.graph, planner)
        mix = f"{long[0]} tokens and {len(short):,} × 1 token"
        measured.append(MixedShapes(mix, *apart, *together))
    return measured


def _time_parts(parts: list[list[int]], graph: EncoderGraph, planner: Planner) -> tuple[float, float]:
    """Plan and run each part with all its sequences waiting; return the median milliseconds and the peak MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    seconds = 0.0
    for lengths in parts:
        sequences = [np.arange(length) for length in lengths]
        runs = (in_process_s(sequences, len(lengths), graph, planner) for _ in range(ROUNDS))
        seconds += statistics.median(runs)
    return seconds * 1e3, memory_mib("VmHWM")
