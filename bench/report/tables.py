"""Writes the figures down: tables in Markdown, the document, JSON and a picture."""

import json
import math
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.measure import median, median_ratio, ratio
from bench.report.targets import (
    of_client,
    of_front_end,
    of_open_loop,
    of_overheads,
    of_planning,
    of_throughput,
    of_tokenizing,
    sustained,
)
from bench.requirement import Requirement
from bench.studies import front_end, tokenizing
from bench.studies import planning_cost as planning
from bench.studies.client import Streaming
from bench.studies.failover import Failover
from bench.studies.front_end import FrontEnd
from bench.studies.open_loop import OpenLoop
from bench.studies.overheads import Alone, Metrics, Poison
from bench.studies.planning_cost import Planning
from bench.studies.throughput import OTHER_REQUESTERS, REQUESTERS, Throughput
from bench.studies.tokenizing import Tokenizing
from testbed.minilm import ROOT

DOCUMENT, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.png"


@dataclass
class Figures:
    """What the parts that ran have found."""

    rounds: int
    throughput: list[Throughput] = field(default_factory=list)
    open_loops: list[OpenLoop] = field(default_factory=list)
    alone: Alone | None = None
    metrics: Metrics | None = None
    poison: Poison | None = None
    front_end: FrontEnd | None = None
    client: Streaming | None = None
    failover: Failover | None = None
    planning: list[Planning] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    int8: list[str] = field(default_factory=list)
    tokenizing: list[Tokenizing] = field(default_factory=list)

    def json(self) -> str:
        """Return every figure of every round."""
        return json.dumps(asdict(self, dict_factory=_without_nan), indent=2, ensure_ascii=False)

    def requirements(self) -> Iterator[Requirement]:
        """Yield every figure that has a bound."""
        for closed in self.throughput:
            yield from of_throughput(closed)
        for loop in self.open_loops:
            yield from of_open_loop(loop)
        yield from of_overheads(self.alone, self.metrics, self.poison)
        yield from of_front_end(self.front_end)
        yield from of_client(self.client, self.failover)
        yield from of_planning(self.planning)
        yield from of_tokenizing(self.tokenizing)


def _without_nan(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict in which null stands for NaN, which JSON has no word for."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in items}


def tables(figures: Figures) -> str:
    """Return the tables of the parts that ran, one after the other."""
    sections = [_required(figures.requirements())]
    sections += [_throughput(closed) for closed in figures.throughput]
    sections += [_open_loop(loop) for loop in figures.open_loops]
    sections += ["\n".join(front_end.table(figures.front_end.costs))] if figures.front_end else []
    sections += ["\n".join(planning.table(figures.planning))] if figures.planning else []
    sections += ["\n".join(figures.shapes)] if figures.shapes else []
    sections += ["\n".join(figures.int8)] if figures.int8 else []
    sections += ["\n".join(tokenizing.table(figures.tokenizing))] if figures.tokenizing else []
    return "\n\n".join(sections)


def _required(requirements: Iterator[Requirement]) -> str:
    rows = [
        (each.what, _figure(each.measured, 2), f"{each.sign} {each.bound:g}", "yes" if each.met else "**no**")
        for each in requirements
    ]
    return _table(("figure", "measured", "required", "met"), rows)


def _throughput(closed: Throughput) -> str:
    header = ["server", "requests/s", "tokens/s", "Headwaiter is", "tokens / CPU-s", "useful tokens", "useful cells"]
    header += ["p50 ms", "p95 ms", "p99 ms", *(f"tokens/s at {requesters}" for requesters in OTHER_REQUESTERS)]
    rows: list[Sequence[str]] = []
    for served in closed.served:
        run = median(served.runs)
        tuned = served.best and not served.usual
        rows.append(
            (
                f"{served.contender.label}, best" if tuned else served.contender.label,
                f"{run.requests_s:.0f}",
                f"{run.tokens_s:,.0f}",
                f"{ratio(closed.ours.runs, served.runs, 'tokens_s'):.2f} ×",
                f"{run.tokens_cpu_s:,.0f}",
                f"{run.useful_tokens:.0%}",
                f"{run.useful_cells:.0%}",
                *(f"{latency_ms:.0f}" for latency_ms in (run.p50_ms, run.p95_ms, run.p99_ms)),
                *(f"{other.tokens_s:,.0f}" for other in served.others.values()),
            )
        )
    rates = [run.tokens_s for run in closed.ours.runs]
    for name, ceiling in (("window of 32", closed.in_process), ("whole trace", closed.in_process_trace)):
        times = median_ratio(rates, ceiling)
        rows.append((f"in process, {name}", "", f"{statistics.median(ceiling):,.0f}", f"{times:.2f} ×"))
    rows.append(("floor", "", "", "", f"{statistics.median(closed.floor):,.0f}"))
    return f"{closed.trace}, {REQUESTERS} requesters:\n\n{_table(header, rows)}"


def _open_loop(loop: OpenLoop) -> str:
    header = ["load", "server", "sustained", "goodput/s", "p50 ms", "p95 ms", "p99 ms", "shortest p50", "shortest p99"]
    header += ["refused/s", "refusals' p99 ms"]
    rows = []
    for each in sorted(loop.loaded, key=lambda each: each.load):
        run = median(each.runs)
        latencies_ms = (run.p50_ms, run.p95_ms, run.p99_ms, run.short_p50_ms, run.short_p99_ms)
        rows.append(
            (
                f"{each.load:.0%}",
                each.contender.label,
                "yes" if sustained(each) else "no",
                f"{run.goodput_s:.1f}",
                *(f"{latency_ms:.0f}" for latency_ms in latencies_ms),
                f"{run.refused_s:.1f}",
                _figure(run.refused_p99_ms, 1),
            )
        )
    return f"{loop.trace}; 100 % is {loop.capacity_s:.1f} requests/s:\n\n{_table(header, rows)}"


def _figure(value: float, digits: int) -> str:
    return "none" if math.isnan(value) else f"{value:.{digits}f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([*row, *[""] * (len(header) - len(row))] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(loops: Sequence[OpenLoop], path: Path) -> None:
    """Draw latency against load: the median as a line, the 99th percentile dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(loops), 5), layout="constrained")
    for axes, loop in zip(figure.subplots(1, len(loops), squeeze=False)[0], loops, strict=True):
        for index, contender in enumerate(dict.fromkeys(each.contender for each in loop.loaded)):
            points = sorted((each for each in loop.loaded if each.contender == contender), key=lambda each: each.load)
            loads = [each.load for each in points]
            runs = [median(each.runs) for each in points]
            axes.plot(loads, [run.p50_ms for run in runs], f"C{index}o-", label=contender.label)
            axes.plot(loads, [run.p99_ms for run in runs], f"C{index}o--")
        axes.set(title=loop.trace, xlabel="load, as a share of Headwaiter's capacity", ylabel="latency, ms; p99 dashed")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_formatter("{x:.0f}")
        axes.legend()
    figure.savefig(path, dpi=120)


def write_document(figures: Figures, minutes: float) -> None:
    """Write docs/benchmarks.md and its picture."""
    picture(figures.open_loops, PICTURE)
    DOCUMENT.write_text(
        _DOCUMENT.format(
            processor=_processor(),
            onnxruntime=version("onnxruntime-gpu"),
            grpcio=version("grpcio"),
            python=platform.python_version(),
            rounds=figures.rounds,
            minutes=minutes,
            picture=PICTURE.name,
            required=_required(figures.requirements()),
            throughput="\n\n".join(map(_throughput, figures.throughput)),
            open_loops="\n\n".join(map(_open_loop, figures.open_loops)),
            front_end="\n".join(front_end.table(figures.front_end.costs) if figures.front_end else ()),
            planning="\n".join(planning.table(figures.planning)),
            shapes="\n".join(figures.shapes),
            int8="\n".join(figures.int8),
            tokenizing="\n".join(tokenizing.table(figures.tokenizing)),
        ),
        encoding="utf-8",
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


_DOCUMENT = (Path(__file__).with_name("page.md")).read_text(encoding="utf-8")
