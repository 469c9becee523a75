"""The CPU time of planning a batch, for different numbers of waiting sequences."""

import time
from dataclasses import dataclass

from bench.loads.traces import MEDIAN_30
from bench.processes import SERVER_CORE, pin
from bench.studies.in_process import Planner, pending_of, waiting
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

WAITING = (100, 1_000, 10_000, 100_000)
_MIN_PLANNED = 5_000


@dataclass(frozen=True)
class PlanningCost:
    """CPU microseconds per sequence.

    Attributes:
        waiting: number of waiting sequences.
        plan_us: microseconds to choose a sequence for a batch and remove it from the queue.
        add_us: microseconds to add a sequence to the queue.
    """

    waiting: int
    plan_us: float
    add_us: float


def planning_costs() -> list[PlanningCost]:
    """Measure each number of waiting sequences; a new sequence replaces each planned one."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner, vocabulary_size = Planner(model), model.bundle.manifest.vocabulary_size
    return [_planning_cost(count, planner, vocabulary_size) for count in WAITING]


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
