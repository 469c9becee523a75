"""The charts of docs/benchmarks.md and of the README, drawn from the JSON of the figures."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.loads.traces import MEDIAN_30
from bench.measure import HEADWAITER

Json = Mapping[str, Any]

LATENCY, SUMMARY = "benchmarks.png", "benchmarks-summary.svg"

# Okabe and Ito's colours, which colour-blind people can tell apart; vermilion is only for Headwaiter.
_HEADWAITER_COLOR = "#d55e00"
_COLORS = ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#000000", "#e69f00", "#888888", "#f0e442")
_MARKERS = "sv^DPX<>"
_LATENCY_TICKS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000)
# The label of each policy in the summary chart, by its name.
_SUMMARY_LABELS = {
    "Headwaiter": "Headwaiter",
    "equal lengths": "equal lengths\n(Triton without ragged batches)",
    "one by one": "one by one\n(no batching)",
    "sorted window": "sorted window\n(infinity)",
    "FIFO by tokens": "FIFO by tokens\n(TEI)",
    "FIFO by count": "FIFO by count\n(Triton)",
}


def draw(path: Path) -> None:
    """Read a JSON file of `Figures`, and write its charts into the same folder."""
    figures: Json = json.loads(path.read_text(encoding="utf-8"))
    # Fixed ids and no date, so that the same figures give the same file.
    with rc_context({"font.size": 13, "axes.titlesize": 13, "svg.hashsalt": "headwaiter"}):
        if loops := figures.get("load"):
            _latency(loops).savefig(path.with_name(LATENCY), dpi=120)
        for closed in figures.get("throughput", ()):
            if closed["trace"] == MEDIAN_30.name:
                _summary(closed["servers"]).savefig(path.with_name(SUMMARY), metadata={"Date": None})


def _latency(loops: Sequence[Json]) -> Figure:
    """Return p50 and p99 against load: one column per trace, one row per quantile, and the legend beside them."""
    styles = dict(_styles(loops))
    loads = [sorted({server["load"] for server in loop["servers"]}) for loop in loops]
    figure = Figure(figsize=(12, 8), layout="constrained")
    grid = figure.subplots(2, len(loops), squeeze=False, sharey="row", width_ratios=[len(each) for each in loads])
    for row, (name, title) in enumerate((("p50_ms", "median latency (p50), ms"), ("p99_ms", "tail latency (p99), ms"))):
        for column, loop in enumerate(loops):
            axes = grid[row][column]
            for label, style in styles.items():
                points = sorted((each["load"], each) for each in loop["servers"] if _label(each["setup"]) == label)
                places = [loads[column].index(load) for load, _ in points]
                axes.plot(places, [_median(server["rounds"], name) for _, server in points], label=label, **style)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator(_LATENCY_TICKS_MS))
            axes.yaxis.set_major_formatter("{x:.0f}")
            axes.minorticks_off()
            axes.set_xticks(range(len(loads[column])), [f"{load:.0%}" for load in loads[column]])
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if row == 0:
                axes.set_title(loop["trace"])
            if column == 0:
                axes.set_ylabel(title)
    figure.supxlabel("load, as a share of Headwaiter's throughput in the closed loop", fontsize=13)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, labelspacing=1.0)
    return figure


def _styles(loops: Sequence[Json]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the label of each server, Headwaiter first, and the style of its line."""
    labels = dict.fromkeys(_label(server["setup"]) for loop in loops for server in loop["servers"])
    yield HEADWAITER.name, {"color": _HEADWAITER_COLOR, "marker": "o", "linewidth": 4, "markersize": 10, "zorder": 3}
    others = [label for label in labels if label != HEADWAITER.name]
    for label, color, marker in zip(others, _COLORS, _MARKERS, strict=False):
        yield label, {"color": color, "marker": marker, "linewidth": 1.5, "markersize": 7}


def _label(setup: Json) -> str:
    """Return the name of a server, and its setting on a second line."""
    name, _, detail = setup["name"].partition(", ")
    detail = setup["policy"] if ":" in setup["policy"] else detail
    return f"{name}\n({detail})" if detail else str(name)


def _summary(servers: Sequence[Json]) -> Figure:
    """Return two bar charts: requests per second and p99 latency of each server at its fastest setting."""
    fastest: dict[str, Sequence[Json]] = {}
    for server in sorted(servers, key=lambda server: _median(server["rounds"], "requests_per_s")):
        fastest[server["setup"]["name"].partition(",")[0]] = server["rounds"]
    rounds = {label: fastest[name] for name, label in _SUMMARY_LABELS.items()}
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    colors = [_HEADWAITER_COLOR, *["#9aa5b1"] * (len(rounds) - 1)]
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, name, title in (
        (left, "requests_per_s", "requests/s (more is better)"),
        (right, "p99_ms", "p99 latency, ms (less is better)"),
    ):
        values = [_median(each, name) for each in rounds.values()]
        bars = axes.barh(list(rounds), values, color=colors, height=0.65)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4)
        axes.set_title(title)
        axes.margins(x=0.15)
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    left.invert_yaxis()
    figure.suptitle("all-MiniLM-L6-v2 on one CPU core, sequences of 4 to 256 tokens, 32 requesters", fontsize=14)
    figure.supxlabel(
        "Batching policies, re-implemented with the same gRPC front end and weights,\n"
        "each at its fastest measured setting.",
        fontsize=11,
    )
    return figure


def _median(rounds: Sequence[Json], name: str) -> float:
    return float(statistics.median(each[name] for each in rounds))
