"""What it costs to plan, by how many sequences wait.

Run as `python -m bench.studies.planning_cost`; it prints a table.
"""

import time
from dataclasses import dataclass

from bench.loads.traces import MEDIAN_30
from bench.measure import SERVER_CORE, pin
from bench.studies.in_process import Planner, pending_of, waiting
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

PENDING = (100, 1_000, 10_000, 100_000)
_PLANNED = 5_000


@dataclass(frozen=True)
class Planning:
    """Microseconds a sequence.

    Attributes:
        pending: how many waited.
        plan_us: to choose it for a batch and take it out of what waits.
        add_us: to let it wait.
    """

    pending: int
    plan_us: float
    add_us: float


def planning() -> list[Planning]:
    """Measure every number of waiting sequences, each replaced as soon as it is planned."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner, vocabulary_size = Planner(model), model.bundle.manifest.vocabulary_size
    return [_planning(pending, planner, vocabulary_size) for pending in PENDING]


def _planning(count: int, planner: Planner, vocabulary_size: int) -> Planning:
    sequences = MEDIAN_30.trace(count, vocabulary_size).sequences
    pending = pending_of(sequences)
    plan_s = add_s = 0.0
    planned = 0
    while planned < _PLANNED:
        started_s = time.process_time()
        batch = planner.take(pending)
        taken_s = time.process_time()
        for sequence in batch:
            pending.add(waiting(sequence.values))
        plan_s += taken_s - started_s
        add_s += time.process_time() - taken_s
        planned += len(batch)
    return Planning(count, plan_s / planned * 1e6, add_s / planned * 1e6)


def table(rows: list[Planning]) -> list[str]:
    """Return a table in Markdown."""
    lines = ["| waiting | planned, µs a sequence | added, µs a sequence |", "|---|---|---|"]
    return lines + [f"| {row.pending:,} | {row.plan_us:.1f} | {row.add_us:.1f} |" for row in rows]


if __name__ == "__main__":
    print("\n".join(table(planning())))
