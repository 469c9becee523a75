"""The planner alone: its CPU time for each sequence."""

import time
from dataclasses import dataclass

from bench.loads.traces import MEDIAN_30
from bench.processes import SERVER_CORE, pin
from bench.run import Run
from bench.studies.in_process import Planner, pending_of, waiting
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

_WAITING = (100, 1_000, 10_000, 100_000)
_MIN_PLANNED = 5_000


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
    costs = [_planning_cost(count, planner, vocabulary_size) for count in _WAITING]
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
