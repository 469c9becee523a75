"""The Grafana dashboard and the alerts query only documented metrics, and alerts have their paragraphs."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.documents import METRICS, ROOT, anchors, table_rows

GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = [rule for group in YAML(typ="safe").load(PROMETHEUS / "alerts.yml")["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((GRAFANA / "dashboards" / "headwaiter.json").read_text())


def values_of(key: str, node: Any) -> Iterator[Any]:
    """Yield the values of a key at any depth of a JSON value."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and key in node:
        yield node[key]
    for child in children:
        yield from values_of(key, child)


def test_every_metric_on_the_dashboard_and_in_alerts_is_documented() -> None:
    # e2e/test_documents.py compares the documented metrics with those of a server.
    documented = {
        name for names, _ in table_rows(METRICS) for name in re.findall(r"`((?:headwaiter|process)_\w+)", names)
    }
    queries = [*values_of("expr", DASHBOARD), *values_of("query", DASHBOARD["templating"]), *values_of("expr", RULES)]
    queried = {name for query in queries for name in re.findall(r"\b(?:headwaiter|process)_\w+", str(query))}
    assert queried
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in queried} <= documented


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_has_a_severity_and_a_paragraph_of_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)


def test_the_unit_tests_of_the_alerts_pass_and_test_each_alert() -> None:
    unit_tests = Path(__file__).with_name("alerts_test.yml")
    tested = set(values_of("alertname", YAML(typ="safe").load(unit_tests)))
    assert tested == {rule["alert"] for rule in RULES}
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: install Prometheus")
    commands = [["test", "rules", str(unit_tests)], ["check", "config", str(PROMETHEUS / "prometheus.yml")]]
    for command in commands:
        checked = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_panel_uses_the_provisioned_datasource() -> None:
    (datasource,) = YAML(typ="safe").load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    provisioned = {"type": datasource["type"], "uid": datasource["uid"]}
    assert all(panel["datasource"] == provisioned for panel in DASHBOARD["panels"])
