"""The findings of a check: what was measured, what is required, and the table of both."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.report.targets import Target

log = logging.getLogger(__name__)

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        part: part of the check.
        name: what is measured, with its unit.
        measured: number or text; None if nothing was measured.
        sign: "≥" or "≤" if there is a bound, else empty.
        bound: bound of the number.
        is_aim: whether the bound is an aim and not a requirement.
        reason: why nothing was measured.
        is_error: whether the reason is an error, and not a missing feature of the machine or a library.
    """

    part: str
    name: str
    measured: float | str | None = None
    sign: str = ""
    bound: float = 0.0
    is_aim: bool = False
    reason: str = ""
    is_error: bool = False

    @property
    def verdict(self) -> str:
        """Whether the bound holds; empty without a bound."""
        if self.measured is None:
            return f"{NOT_MEASURED}: {self.reason}"
        if not self.sign:
            return ""
        assert not isinstance(self.measured, str)
        return HOLDS if Target(self.name, self.measured, self.sign, self.bound).met else FAILS

    @property
    def fails(self) -> bool:
        """Whether a requirement does not hold, or an error prevented the measurement; an aim never fails."""
        return self.is_error or (self.verdict == FAILS and not self.is_aim)

    def row(self) -> tuple[str, ...]:
        """Return the cells of the line."""
        required = f"{'aim ' * self.is_aim}{self.sign} {_number(self.bound)}" if self.sign else ""
        measured = _number(self.measured) if isinstance(self.measured, float | int) else self.measured or ""
        return self.part, self.name, measured, required, self.verdict


@dataclass
class Findings:
    """Collects the findings of one part, and logs each at once, so that findings survive a GPU that hangs later."""

    part: str
    found: list[Finding] = field(default_factory=list)

    def record(self, name: str, measured: str | float) -> None:
        """Add a finding without a bound."""
        self._add(Finding(self.part, name, measured))

    def require(self, name: str, measured: float, sign: str, bound: float, *, is_aim: bool = False) -> None:
        """Add a number with its bound."""
        self._add(Finding(self.part, name, measured, sign, bound, is_aim))

    def skip(self, name: str, reason: str) -> None:
        """Add a measurement that is impossible on this machine."""
        self._add(Finding(self.part, name, reason=reason))

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Turn an error into a finding, so that the check continues."""
        try:
            yield
        except Exception as error:
            log.exception("%s: %s", self.part, name)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._add(Finding(self.part, name, reason=reason, is_error=True))

    def _add(self, finding: Finding) -> None:
        self.found.append(finding)
        log.info("%s", " | ".join(finding.row()))


def table(findings: Sequence[Finding]) -> str:
    """Return the table in Markdown."""
    header = ("part", "name", "measured", "required", "verdict")
    rows = [header, ("---",) * len(header), *(finding.row() for finding in findings)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


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


def _number(value: float) -> str:
    """Format large numbers in full, and small ones with three significant digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value and abs(1 - value) < 0.01:
        return f"{value:.7g}"  # A cosine, whose distance from 1 matters.
    return f"{value:.3g}"
