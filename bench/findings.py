"""Figures of the benchmarks and the GPU check, their bounds, and the tables of both."""

import json
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.rounds import Rounds

log = logging.getLogger(__name__)

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured"
_COMPARISONS = {"≥": operator.ge, "≤": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq}


class OutOfTime(Exception):
    """The time of a part of the check is up."""


@dataclass(frozen=True)
class Finding:
    """One figure.

    Attributes:
        part: the part of the check, or the study and its load.
        name: name of the figure, with its unit.
        measured: a number, one number per round (whose median counts), or a text; None if nothing was measured.
        sign: "≥", "≤", ">" or "<" if there is a bound, "=" if there is an expected text, else empty.
        bound: bound of the number, or the expected text.
        is_aim: whether the bound is an aim and not a requirement.
        reason: why nothing was measured.
        is_error: whether the reason is an error; otherwise the machine or a library lacks a feature.
    """

    part: str
    name: str
    measured: float | Rounds | str | None = None
    sign: str = ""
    bound: float | str = 0.0
    is_aim: bool = False
    reason: str = ""
    is_error: bool = False

    @property
    def number(self) -> float:
        """The measured number; NaN if the figure is a text or was not measured."""
        return float("nan") if isinstance(self.measured, str | None) else float(self.measured)

    @property
    def verdict(self) -> str:
        """Whether the bound holds, or why nothing was measured; empty without a bound."""
        if self.measured is None:
            return f"{NOT_MEASURED}: {self.reason}"
        if not self.sign:
            return ""
        measured = self.measured if isinstance(self.bound, str) else self.number
        return HOLDS if _COMPARISONS[self.sign](measured, self.bound) else FAILS

    @property
    def fails(self) -> bool:
        """Whether a requirement does not hold, or an error prevented the measurement; an aim never fails."""
        return self.is_error or (self.verdict == FAILS and not self.is_aim)

    def row(self) -> tuple[str, ...]:
        """Return the cells of the figure's line in the table of the GPU check."""
        bound = self.bound if isinstance(self.bound, str) else format_number(self.bound)
        required = f"{'aim ' * self.is_aim}{self.sign} {bound}" if self.sign else ""
        measured = self.measured or "" if isinstance(self.measured, str | None) else format_number(self.number)
        return self.part, self.name, measured, required, self.verdict


@dataclass
class Findings:
    """Collects the findings of a part, and logs each at once, so that findings survive a GPU that hangs later.

    No attempt starts after `end_s` on the clock `now_s`; the enclosing attempt then records the error OutOfTime.
    """

    part: str
    found: list[Finding] = field(default_factory=list)
    end_s: float = math.inf
    now_s: Callable[[], float] = time.monotonic

    def of_part(self, part: str) -> "Findings":
        """Return a collector that adds the findings of another part to the same list."""
        return Findings(part, self.found)

    def record(self, name: str, measured: str | float | Rounds) -> None:
        """Add a figure without a bound."""
        self._add(Finding(self.part, name, measured))

    def require(self, name: str, measured: float | Rounds, sign: str, bound: float, *, is_aim: bool = False) -> None:
        """Add a figure with its bound."""
        self._add(Finding(self.part, name, measured, sign, bound, is_aim))

    def expect(self, name: str, measured: str, expected: str) -> None:
        """Add a text that must be equal to the expected text."""
        self._add(Finding(self.part, name, measured, "=", expected))

    def skip(self, name: str, reason: str) -> None:
        """Add a measurement that is impossible on this machine."""
        self._add(Finding(self.part, name, reason=reason))

    def number(self, name: str) -> float | None:
        """Return a figure of this part or an earlier one; None if it was not measured."""
        return next((each.number for each in self.found if each.name == name and each.measured is not None), None)

    def require_time(self) -> None:
        """Raise OutOfTime if the time of the part is up."""
        if self.now_s() >= self.end_s:
            raise OutOfTime("the time of this part is up: run this part alone")

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Turn an error into a finding, so that the check continues.

        Raises:
            OutOfTime: the time of the part is up, so the block does not start.
        """
        self.require_time()
        try:
            yield
        except Exception as error:
            log.exception("%s: %s", self.part, name)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._add(Finding(self.part, name, reason=reason, is_error=True))

    def _add(self, finding: Finding) -> None:
        self.found.append(finding)
        log.info("%s", " | ".join(finding.row()))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def findings_table(findings: Sequence[Finding]) -> str:
    """Return the table of the GPU check."""
    return table(("part", "name", "measured", "required", "verdict"), [finding.row() for finding in findings])


def summary(findings: Sequence[Finding]) -> str:
    """Return one line that counts requirements, missing measurements and errors."""
    verdicts = [finding.verdict for finding in findings if finding.sign and not finding.is_aim]
    missing = sum(finding.measured is None for finding in findings)
    errors = sum(finding.is_error for finding in findings)
    return (
        f"{verdicts.count(HOLDS)} requirements hold, {verdicts.count(FAILS)} do not hold; "
        f"{missing} values were not measured, {errors} of them because of an error"
    )


def to_json(findings: Sequence[Finding], run: Mapping[str, Any]) -> str:
    """Return the description of the run and all findings with their verdicts as JSON."""
    lines = [{**asdict(finding), "verdict": finding.verdict} for finding in findings]
    return json.dumps({**run, "findings": lines}, indent=2, ensure_ascii=False)


def format_number(value: float) -> str:
    """Format large numbers in full, and small ones with three significant digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value and abs(1 - value) < 0.01:
        return f"{value:.7g}"  # A cosine, whose distance from 1 matters.
    return f"{value:.3g}"
