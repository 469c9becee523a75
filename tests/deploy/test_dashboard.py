"""The Grafana dashboard queries only metrics that the server exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ruamel.yaml import YAML

from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.runtime.numeric_tolerances import Difference
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import LearntCost
from tests.server.rpc.stand_ins import CALIBRATION

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "headwaiter.json").read_text())
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def values_of(key: str, node: Any) -> Iterator[Any]:
    """Yield the values of a key at any depth of a JSON value."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and key in node:
        yield node[key]
    for child in children:
        yield from values_of(key, child)


def exported_series() -> set[str]:
    """Return the names of all time series that a serving server exports."""
    manifest = SimpleNamespace(name="model")
    self_check = Difference(0.0, 0.0, 0.0, 0.0, min_cosine=1.0, mean_cosine=1.0)
    model: Any = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest, digest="0"),
        provider="cpu",
        graph_file="graph.onnx",
        self_check=self_check,
        fallback_reason="",
    )
    limits = AdaptiveLimits(CALIBRATION.limits)
    learnt = LearntCost(CALIBRATION.cost)
    queue: Any = SimpleNamespace(queued_sequences=0, queued_tokens=0, limits=limits, learnt=learnt)
    recorder = Recorder()
    recorder.model("model", "1").serving(model, CALIBRATION, queue, lambda: 0.0)
    return {
        metric.name + suffix for metric in recorder.registry.collect() for suffix in SUFFIXES.get(metric.type, ("",))
    }


def test_the_server_exports_every_metric_on_the_dashboard() -> None:
    queries = [*values_of("expr", DASHBOARD), *values_of("query", DASHBOARD["templating"])]
    queried = {name for query in queries for name in re.findall(r"\bheadwaiter_\w+", str(query))}
    assert queried
    assert queried <= exported_series()


def test_every_panel_uses_the_provisioned_datasource() -> None:
    (datasource,) = YAML(typ="safe").load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    provisioned = {"type": datasource["type"], "uid": datasource["uid"]}
    assert all(panel["datasource"] == provisioned for panel in DASHBOARD["panels"])
