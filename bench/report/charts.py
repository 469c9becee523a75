"""The charts of docs/benchmarks/README.md, drawn from the JSON of the figures, and bar charts."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.measure import HEADWAITER

Json = Mapping[str, Any]

LATENCY = "benchmarks.png"

# Okabe and Ito's colours, which colour-blind people can tell apart; vermilion is only for Headwaiter.
_HEADWAITER_COLOR = "#d55e00"
_COLORS = ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#000000", "#e69f00", "#888888", "#f0e442")
_MARKERS = "sv^DPX<>"
_LATENCY_TICKS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000)


def draw(path: Path) -> None:
    """Read a JSON file of `Figures`, and write its charts into the same folder."""
    figures: Json = json.loads(path.read_text(encoding="utf-8"))
    with rc_context({"font.size": 13, "axes.titlesize": 13}):
        if loops := figures.get("load"):
            _latency(loops).savefig(path.with_name(LATENCY), dpi=120)


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


def bars(labels: Sequence[str], columns: Mapping[str, Sequence[float]], title: str, note: str) -> Figure:
    """Return a bar chart for each column, side by side; the first label is Headwaiter's."""
    with rc_context({"font.size": 13, "axes.titlesize": 13}):
        figure = Figure(figsize=(10, 0.5 * len(labels) + 1.6), layout="constrained")
        colors = [_HEADWAITER_COLOR, *["#9aa5b1"] * (len(labels) - 1)]
        every_axes = figure.subplots(1, len(columns), sharey=True)
        for axes, (name, values) in zip(every_axes, columns.items(), strict=True):
            drawn = axes.barh(labels, values, color=colors, height=0.65)
            axes.bar_label(drawn, [f"{value:,.0f}" for value in values], padding=4)
            axes.set_title(name)
            axes.margins(x=0.15)
            axes.set_xticks([])
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right", "bottom"]].set_visible(False)
        every_axes[0].invert_yaxis()
        figure.suptitle(title, fontsize=14)
        figure.supxlabel(note, fontsize=11)
    return figure


def _median(rounds: Sequence[Json], name: str) -> float:
    return float(statistics.median(each[name] for each in rounds))
