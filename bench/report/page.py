"""Write docs/benchmarks/README.md and its chart from the figures of a full run.

`make bench` does so at its end. Run `python -m bench.report` to write them again.
"""

import json
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.findings import FAILS, Finding
from bench.report import charts
from bench.rounds import Rounds
from testbed.minilm import ROOT

FIGURES = ROOT / "docs" / "benchmarks" / "figures.json"
PAGE = FIGURES.with_name("README.md")
TEMPLATE = Path(__file__).with_name("page.md")


def write() -> None:
    """Write the page, and draw its chart."""
    PAGE.write_text(page(FIGURES.read_text(encoding="utf-8")), encoding="utf-8")
    charts.draw(FIGURES)


def page(figures: str) -> str:
    """Return the page, given the JSON of `Figures`: the template with the figures, and the targets that are missed."""
    read = json.loads(figures, object_hook=_with_rounds)
    findings = [Finding(**each) for each in read["findings"]]
    targets = [each for each in findings if each.sign]
    missed = [each for each in targets if each.verdict == FAILS]
    return TEMPLATE.read_text(encoding="utf-8").format(
        **read, found=_Found(findings), targets=len(targets), met=len(targets) - len(missed), missed=_list(missed)
    )


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


def _list(findings: Sequence[Finding]) -> str:
    """Return a list with an item for each part."""
    items = (
        f"- **{part}**: {'; '.join(f'{each.name}: {each.number:.2f} ({each.sign} {each.bound:g})' for each in group)}"
        for part, group in groupby(findings, lambda finding: finding.part)
    )
    return "\n".join(textwrap.fill(item, 120, subsequent_indent="  ", break_long_words=False) for item in items)


def _with_rounds(read: dict[str, Any]) -> dict[str, Any]:
    """Turn lists of numbers into rounds, whose medians the page shows."""

    def is_rounds(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(each, int | float) for each in value)

    return {name: Rounds(value) if is_rounds(value) else value for name, value in read.items()}
