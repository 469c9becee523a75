"""One run of the benchmarks: the sizes of its loads, the servers and traces that studies share, and all figures."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from bench.findings import Findings
from bench.loads.traces import Trace
from bench.measure import Fleet
from bench.processes import processor


@dataclass(frozen=True)
class RunSizes:
    """Numbers of rounds and lengths of the loads; the defaults are those of the full run, which takes about 90 minutes.

    Attributes:
        rounds: rounds of each comparison; the tables show medians over the rounds.
        trace_tokens: tokens of the trace of a closed loop.
        poison_repeats: number of times that the trace is sent beside poisoned sequences.
        sweep_tokens: tokens of the trace for tuning settings, and for other numbers of requesters.
        other_requesters: numbers of requesters of a closed loop, besides 32.
        open_s: seconds of each open loop below capacity.
        compared_s: seconds of each open loop at 70 % load.
        overload_s: seconds of each open loop above capacity.
        all_traces: whether to run all traces, or only the first.
    """

    rounds: int = 3
    trace_tokens: int = 12_000
    poison_repeats: int = 10
    sweep_tokens: int = 4_000
    other_requesters: tuple[int, ...] = (1, 8, 128)
    open_s: float = 8.0
    compared_s: float = 16.0
    overload_s: float = 60.0
    all_traces: bool = True


FULL = RunSizes()
# About 20 minutes.
QUICK = RunSizes(1, 6_000, 2, 2_000, (), open_s=5.0, compared_s=5.0, overload_s=5.0, all_traces=False)


def described_run() -> dict[str, str]:
    """Return the date, the processor and the versions of this run, and room for a note about its figures."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "Python": platform.python_version(),
        "ONNX Runtime": version("onnxruntime-gpu"),
        "grpcio": version("grpcio"),
        "note": "",
    }


@dataclass
class Figures:
    """All figures of a run: the table rows of each study, by the study's name, and the other figures as findings."""

    rounds: int
    run: Mapping[str, str] = field(default_factory=described_run)
    tables: dict[str, list[Any]] = field(default_factory=dict)
    findings: Findings = field(default_factory=lambda: Findings(""))

    def to_json(self) -> str:
        """Return all figures of all rounds as JSON; null stands for NaN."""
        figures = asdict(self, dict_factory=_without_nan)
        flat = {"run": self.run, "rounds": self.rounds, **figures["tables"], "findings": figures["findings"]["found"]}
        return json.dumps(flat, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Run:
    """The sizes, servers, traces and figures that all studies share; `traces[0]` has a median length of 30 tokens."""

    sizes: RunSizes
    fleet: Fleet
    traces: list[Trace]
    figures: Figures


def _without_nan(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in items}
