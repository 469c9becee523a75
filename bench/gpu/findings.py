"""What was found, what was required, and the one table that puts them side by side."""

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
        part: which part of the check found it.
        what: in words.
        measured: a figure, or what was seen, in words; None where nothing was.
        sign: "≥" or "≤" where there is a bound, else empty.
        bound: what the figure has to be.
        aim: whether the bound is hoped for and not required.
        why: why nothing was measured.
        broke: whether that is an error, and not the machine's or the version's lack of something.
    """

    part: str
    what: str
    measured: float | str | None = None
    sign: str = ""
    bound: float = 0.0
    aim: bool = False
    why: str = ""
    broke: bool = False

    @property
    def verdict(self) -> str:
        """Return whether it holds; nothing where a figure has no bound."""
        if self.measured is None:
            return f"{NOT_MEASURED}: {self.why}"
        if not self.sign:
            return ""
        assert not isinstance(self.measured, str)
        return HOLDS if Target(self.what, self.measured, self.sign, self.bound).met else FAILS

    @property
    def fails(self) -> bool:
        """Whether what is required, and not only hoped for, does not hold, or an error kept it from being measured."""
        return self.broke or (self.verdict == FAILS and not self.aim)

    def row(self) -> tuple[str, ...]:
        """Return its cells."""
        required = f"{'aim ' * self.aim}{self.sign} {_number(self.bound)}" if self.sign else ""
        measured = "" if self.measured is None else self.measured
        return (
            self.part,
            self.what,
            measured if isinstance(measured, str) else _number(measured),
            required,
            self.verdict,
        )


@dataclass
class Findings:
    """Takes what a part finds, line by line, and says it at once: a card that hangs later has been heard until then."""

    part: str
    found: list[Finding] = field(default_factory=list)

    def see(self, what: str, seen: str | float) -> None:
        """Add what has no bound."""
        self._add(Finding(self.part, what, seen))

    def hold(self, what: str, measured: float, sign: str, bound: float, *, aim: bool = False) -> None:
        """Add a figure with its bound."""
        self._add(Finding(self.part, what, measured, sign, bound, aim))

    def skip(self, what: str, why: str) -> None:
        """Add what could not be measured here."""
        self._add(Finding(self.part, what, why=why))

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Go on after an error, which becomes the reason why something was not measured."""
        try:
            yield
        except Exception as error:
            log.exception("%s: %s", self.part, what)
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._add(Finding(self.part, what, why=why, broke=True))

    def _add(self, finding: Finding) -> None:
        self.found.append(finding)
        log.info("%s", " | ".join(finding.row()))


def table(findings: Sequence[Finding]) -> str:
    """Return the table in Markdown."""
    header = ("part", "what", "measured", "required", "verdict")
    rows = [header, ("---",) * len(header), *(finding.row() for finding in findings)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def summary(findings: Sequence[Finding]) -> str:
    """Return in one line how many requirements hold."""
    required = [finding.verdict for finding in findings if finding.sign and not finding.aim]
    missing, broken = (sum(each) for each in zip(*((f.measured is None, f.broke) for f in findings), strict=True))
    return (
        f"{required.count(HOLDS)} requirements hold, {required.count(FAILS)} do not; "
        f"{missing} lines were not measured, {broken} of them for an error"
    )


def to_json(findings: Sequence[Finding], run: Mapping[str, Any]) -> str:
    """Return every finding with its verdict, after what is to be known of the run."""
    lines = [{**asdict(finding), "verdict": finding.verdict} for finding in findings]
    return json.dumps({**run, "findings": lines}, indent=2, ensure_ascii=False)


def _number(value: float) -> str:
    """Write large numbers out, and small ones with three digits that count."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value and abs(1 - value) < 0.01:
        return f"{value:.7g}"  # A cosine: what counts is how far it is from 1.
    return f"{value:.3g}"
