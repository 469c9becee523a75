"""The report: targets, tables, and charts drawn from the committed figures."""

import json
from pathlib import Path
from string import Formatter

import pytest

from bench.findings import Finding, Findings
from bench.report import charts, tables
from bench.rounds import Rounds
from bench.run import Figures
from bench.studies.planning import PlanningCost
from testbed.minilm import ROOT


@pytest.mark.parametrize(
    ("sign", "met"),
    [("≥", (False, True, True)), ("≤", (True, True, False)), (">", (False, False, True)), ("<", (True, False, False))],
)
def test_each_sign_judges_numbers_below_at_and_above_the_bound(sign: str, met: tuple[bool, ...]) -> None:
    findings = [Finding("part", "figure", measured, sign, 2.0) for measured in (1.0, 2.0, 3.0)]
    assert tuple(not finding.fails for finding in findings) == met


def test_only_studies_that_ran_have_targets_and_tables() -> None:
    figures = Figures(rounds=1, tables={"planning": [PlanningCost(1000, plan_us=12.5, add_us=3.0)]})
    assert set(tables.sections(figures)) == {"planning"}
    figures.findings.of_part("1,000 waiting").require("plan, µs", Rounds([11.0, 12.5, 14.0]), "≤", 10.0)
    figures.findings.record("seconds", 3.0)
    sections = tables.sections(figures)
    assert set(sections) == {"targets", "planning"}
    assert sections["planning"].splitlines()[2:] == ["| 1,000 | 12.5 | 3.0 |"]
    assert sections["targets"].splitlines()[2:] == ["| 1,000 waiting | plan, µs | 12.50 | ≤ 10 | **no** |"]


def test_every_table_has_a_place_in_the_page() -> None:
    places = {place for _, place, _, _ in Formatter().parse(tables.PAGE)}
    assert {*tables.COLUMNS} < places


def test_the_json_holds_every_round_and_null_for_nan() -> None:
    findings = Findings("part")
    findings.record("ratio", Rounds([6.0, 9.0]) / Rounds([2.0, 4.0]))
    findings.record("nothing", float("nan"))
    written = json.loads(Figures(rounds=2, findings=findings).to_json())
    assert [finding["measured"] for finding in written["findings"]] == [[3.0, 2.25], None]


def test_the_committed_figures_give_the_chart(tmp_path: Path) -> None:
    figures = tmp_path / "benchmarks.json"
    figures.write_bytes((ROOT / "docs" / "benchmarks" / "figures.json").read_bytes())
    charts.draw(figures)
    assert {path.name for path in tmp_path.iterdir()} == {figures.name, charts.LATENCY}
