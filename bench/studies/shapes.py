"""Whether a long sequence among many short ones costs more than the two apart: in time and in memory.

Run as `python -m bench.studies.shapes`; it prints a table.
"""

import statistics
from pathlib import Path

import numpy as np

from bench.measure import SERVER_CORE, pin
from bench.studies.ceiling import in_process_s
from bench.studies.in_process import Planner
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

MIXES = (([200], [1] * 150), ([512], [1] * 2000))
ROUNDS = 5


def table() -> list[str]:
    """Measure every mix, together and apart, and return a table in Markdown."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner = Planner(model)
    lines = [
        "| mix | apart ms | together ms | together / apart | peak memory apart MiB | together MiB |",
        "|---|---|---|---|---|---|",
    ]
    for long, short in MIXES:
        forget_peak()
        apart_s = median_s(long, model.graph, planner) + median_s(short, model.graph, planner)
        apart_mib = peak_mib()
        forget_peak()
        together_s = median_s(long + short, model.graph, planner)
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


def median_s(lengths: list[int], graph: EncoderGraph, planner: Planner) -> float:
    """Return the seconds to plan and run sequences of these lengths that all wait at once."""
    sequences = [np.arange(length) for length in lengths]
    return statistics.median(in_process_s(sequences, len(lengths), graph, planner) for _ in range(ROUNDS))


if __name__ == "__main__":
    print("\n".join(table()))
