"""One long sequence among many short ones: seconds and memory of the mix, against the two parts run apart."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.processes import SERVER_CORE, memory_mib, pin
from bench.studies.ceiling import in_process_s
from bench.studies.in_process import Planner
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle

# Lengths of the long part and of the short part.
MIXES = (([200], [1] * 150), ([512], [1] * 2000))
ROUNDS = 5


@dataclass(frozen=True)
class MixedShapes:
    """One mix, planned and run in process.

    Attributes:
        mix: the lengths, for the table.
        apart_s: seconds of the two parts, one after the other.
        together_s: seconds of the mix.
        apart_mib: peak memory of the process with the parts apart.
        together_mib: peak memory of the process with the mix.
    """

    mix: str
    apart_s: float
    together_s: float
    apart_mib: float
    together_mib: float


def mixed_shapes() -> list[MixedShapes]:
    """Measure each mix, apart and together."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    planner = Planner(model)
    measured = []
    for long, short in MIXES:
        _reset_peak_memory()
        apart_s = _median_s(long, model.graph, planner) + _median_s(short, model.graph, planner)
        apart_mib = memory_mib("VmHWM")
        _reset_peak_memory()
        together_s = _median_s(long + short, model.graph, planner)
        mix = f"{long[0]} tokens and {len(short):,} × 1 token"
        measured.append(MixedShapes(mix, apart_s, together_s, apart_mib, memory_mib("VmHWM")))
    return measured


def _reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _median_s(lengths: list[int], graph: EncoderGraph, planner: Planner) -> float:
    """Return the median seconds to plan and run sequences that all wait at once."""
    sequences = [np.arange(length) for length in lengths]
    return statistics.median(in_process_s(sequences, len(lengths), graph, planner) for _ in range(ROUNDS))
