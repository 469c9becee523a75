"""Whether a long sequence among many short ones costs more than the two apart: in time and in memory.

Run as `python -m bench.shapes`; it prints a table.
"""

import statistics
import time
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np

from bench.ceiling import pin
from examples.model import bundle
from headwaiter_server.batching.calibration import measure_cost
from headwaiter_server.batching.cost import BatchLimits, CostModel
from headwaiter_server.batching.job import Job, Priority, Sequence
from headwaiter_server.batching.pending import Pending
from headwaiter_server.batching.planner import plan
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack

MIXES = (([200], [1] * 150), ([512], [1] * 2000))
ROUNDS = 5


def table() -> list[str]:
    """Measure every mix, together and apart, and return a table in Markdown."""
    pin(0)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    calibration = measure_cost(model)
    cost, limits = calibration.cost, calibration.limits
    lines = [
        "| mix | apart ms | together ms | together / apart | peak memory apart MiB | together MiB |",
        "|---|---|---|---|---|---|",
    ]
    for long, short in MIXES:
        forget_peak()
        apart_s = median_s(long, model.graph, cost, limits) + median_s(short, model.graph, cost, limits)
        apart_mib = peak_mib()
        forget_peak()
        together_s = median_s(long + short, model.graph, cost, limits)
        lines.append(
            f"| {long[0]} tokens and {len(short):,} × 1 | {apart_s * 1e3:.0f} | {together_s * 1e3:.0f} "
            f"| {together_s / apart_s:.2f} | {apart_mib:.1f} | {peak_mib():.1f} |"
        )
    return lines


def forget_peak() -> None:
    """Let the peak of this process's memory start again from what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Return the peak of this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def median_s(lengths: list[int], graph: EncoderGraph, cost: CostModel, limits: BatchLimits) -> float:
    """Return the seconds to plan and run sequences of these lengths that all wait at once."""
    return statistics.median(_run_s(lengths, graph, cost, limits) for _ in range(ROUNDS))


def _run_s(lengths: list[int], graph: EncoderGraph, cost: CostModel, limits: BatchLimits) -> float:
    started_s = time.perf_counter()
    pending, order = Pending(), count()
    for length in lengths:
        nobody = cast("Job", None)
        ids = np.arange(length)
        pending.add(Sequence(ids, length, next(order), 0.0, float("inf"), Priority.INTERACTIVE, nobody, 0))
    while batch := plan(pending, 0.0, cost, limits).batch:
        graph.run(pack([sequence.values for sequence in batch]), hidden=False)
        for sequence in batch:
            pending.remove(sequence)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    print("\n".join(table()))
