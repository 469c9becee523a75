"""Write docs/benchmarks/README.md, its chart and the table of missed targets from the figures of a full run.

`make bench` does so at its end. Run `python -m bench.report` to write them again.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.findings import FAILS, Finding, table
from bench.report import charts
from bench.rounds import Rounds
from testbed.minilm import ROOT

FIGURES = ROOT / "docs" / "benchmarks" / "figures.json"
PAGE = FIGURES.with_name("README.md")
TEMPLATE = Path(__file__).with_name("page.md")
# The page that ends with the table of missed targets.
MISSED = ROOT / "docs" / "decisions" / "missed-targets.md"
_TABLE_BEGINS = "| load | figure |"


def write() -> None:
    """Write the page and the table of missed targets, and draw the chart."""
    figures = FIGURES.read_text(encoding="utf-8")
    PAGE.write_text(page(figures), encoding="utf-8")
    reasons, _, _ = MISSED.read_text(encoding="utf-8").partition(_TABLE_BEGINS)
    MISSED.write_text(reasons + missed_targets(figures), encoding="utf-8")
    charts.draw(FIGURES)


def page(figures: str) -> str:
    """Return the page, given the JSON of `Figures`: the template with the figures."""
    read, findings = _read(figures)
    targets = [each for each in findings if each.sign]
    missed = len(_missed(findings))
    return TEMPLATE.read_text(encoding="utf-8").format(
        **read, found=_Found(findings), targets=len(targets), met=len(targets) - missed, missed=missed
    )


def missed_targets(figures: str) -> str:
    """Return the table of the targets that are missed, given the JSON of `Figures`."""
    _, findings = _read(figures)
    rows = [[each.part, each.name, f"{each.number:.2f}", f"{each.sign} {each.bound:g}"] for each in _missed(findings)]
    return table(["load", "figure", "measured", "target"], rows) + "\n"


def _missed(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.verdict == FAILS]


class _Found:
    """The findings, by the beginnings of their part and of their name, with a bar between them."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._findings = findings

    def __getitem__(self, key: str) -> float:
        part, _, name = key.partition("|")
        (number,) = (
            each.number for each in self._findings if each.part.startswith(part) and each.name.startswith(name)
        )
        return number


def _read(figures: str) -> tuple[dict[str, Any], list[Finding]]:
    read = json.loads(figures, object_hook=_with_rounds)
    return read, [Finding(**each) for each in read["findings"]]


def _with_rounds(read: dict[str, Any]) -> dict[str, Any]:
    """Turn lists of numbers into rounds, whose medians the page shows."""

    def is_rounds(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(each, int | float) for each in value)

    return {name: Rounds(value) if is_rounds(value) else value for name, value in read.items()}
