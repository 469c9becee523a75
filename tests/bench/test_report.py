"""The report: targets, tables, and charts drawn from the committed figures."""

import json
from pathlib import Path

import pytest

from bench.findings import Finding, Findings
from bench.report import charts, page, tables
from bench.rounds import Rounds
from bench.run import Figures
from bench.studies.planning import PlanningCost


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


def test_the_page_and_the_missed_targets_are_those_that_the_committed_figures_give() -> None:
    figures = page.FIGURES.read_text("utf-8")
    assert page.PAGE.read_text("utf-8") == page.page(figures)
    assert page.MISSED.read_text("utf-8").endswith(f"\n\n{page.missed_targets(figures)}")


def test_the_page_has_the_medians_of_the_figures_and_the_missed_targets() -> None:
    figures = json.loads(page.FIGURES.read_text("utf-8"))
    figures["int8"][0]["ratio"] = [9.0, 1.5, 1.25]
    for each in figures["findings"]:
        each["sign"] = ""
    planning = [each for each in figures["findings"] if "µs per sequence" in each["name"]]
    for each, plan_us in zip(planning, (9.9, 10.0, 10.5, [1.0, 11.25, 12.0]), strict=True):
        each.update(sign="≤", bound=10.0, measured=plan_us)
    text = page.page(json.dumps(figures))
    assert "| tokens per CPU second: int8 / fp32 | 1.50 |" in text
    assert "2 of 4 targets are met." in text
    assert page.missed_targets(json.dumps(figures)).splitlines()[2:] == [
        "| 10,000 sequences waiting | CPU time to plan, µs per sequence | 10.50 | ≤ 10 |",
        "| 100,000 sequences waiting | CPU time to plan, µs per sequence | 11.25 | ≤ 10 |",
    ]


def test_the_json_holds_every_round_and_null_for_nan() -> None:
    findings = Findings("part")
    findings.record("ratio", Rounds([6.0, 9.0]) / Rounds([2.0, 4.0]))
    findings.record("nothing", float("nan"))
    written = json.loads(Figures(rounds=2, findings=findings).to_json())
    assert [finding["measured"] for finding in written["findings"]] == [[3.0, 2.25], None]


def test_the_committed_figures_give_the_chart(tmp_path: Path) -> None:
    figures = tmp_path / "benchmarks.json"
    figures.write_bytes(page.FIGURES.read_bytes())
    charts.draw(figures)
    assert {path.name for path in tmp_path.iterdir()} == {figures.name, charts.LATENCY}
