"""The report: targets, tables, and charts drawn from the committed figures."""

import json
from pathlib import Path

import pytest

from bench.report import charts, tables
from bench.report.figures import Figures
from bench.report.targets import Target, targets
from bench.studies.planning_cost import PlanningCost
from testbed.minilm import ROOT


@pytest.mark.parametrize(
    ("sign", "met"),
    [("≥", (False, True, True)), ("≤", (True, True, False)), (">", (False, False, True)), ("<", (True, False, False))],
)
def test_a_target_is_met_below_at_and_above_its_bound(sign: str, met: tuple[bool, ...]) -> None:
    assert tuple(Target("figure", measured, sign, 2.0).met for measured in (1.0, 2.0, 3.0)) == met


def test_only_studies_that_ran_have_targets_and_tables() -> None:
    figures = Figures(rounds=1, planning=[PlanningCost(1000, plan_us=12.5, add_us=3.0)])
    (target,) = targets(figures)
    assert (target.measured, target.met) == (12.5, False)
    assert set(tables.sections(figures)) == {"targets", "planning"}
    assert "| 1,000 | 12.5 | 3.0 |" in tables.sections(figures)["planning"]


def test_the_committed_figures_give_both_charts(tmp_path: Path) -> None:
    figures = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
    charts.draw(figures, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [charts.SUMMARY, charts.LATENCY]
    for label in (b"svg", b"</svg>"):
        assert label in (tmp_path / charts.SUMMARY).read_bytes()
