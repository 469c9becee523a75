"""A real Prometheus, which scrapes servers and evaluates the alerts of `deploy/prometheus`."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from testbed.minilm import ROOT
from testbed.server_process import free_port

_RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
_DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "headwaiter.json"


class Prometheus:
    """Asks a Prometheus that runs at a port of this host."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the value of each series, by its labels without its name."""
        found = self._get("query", query=expression)["result"]
        return {
            frozenset((name, value) for name, value in each["metric"].items() if name != "__name__"): float(
                each["value"][1]
            )
            for each in found
        }

    def value(self, expression: str) -> float:
        """Return the value of the only series; not a number if there is none."""
        found = list(self.query(expression).values())
        assert len(found) <= 1, found
        return found[0] if found else float("nan")

    def firing(self) -> set[tuple[str, str]]:
        """Return the name and the instance of each alert that fires."""
        alerts = self._get("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"]["instance"]) for each in alerts if each["state"] == "firing"
        }

    def is_ready(self) -> bool:
        """Return whether Prometheus has asked its targets, which it first does about five seconds after its start."""
        with suppress(URLError):
            return bool(self.query("up"))
        return False

    def _get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/{path}?{urlencode(parameters)}", timeout=10) as reply:
            return json.load(reply)["data"]


@contextmanager
def running_prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes targets twice a second.

    The alerts fire as soon as their expression holds: promtool's unit tests check for how long it must hold.

    Args:
        folder: for its configuration and its data.
        targets: the HOST:PORT of each target, by the name that its series have in the label `instance`.
    """
    rules = re.sub(r"^ +for: .*\n", "", _RULES.read_text(), flags=re.MULTILINE)
    (folder / "alerts.yml").write_text(rules)
    static = [{"targets": [address], "labels": {"instance": name}} for name, address in targets.items()]
    configuration = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "headwaiter", "static_configs": static}],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    port = free_port()
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    command: Sequence[str] = ["prometheus", *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            prometheus = Prometheus(port)
            wait_until(prometheus.is_ready)
            yield prometheus
        finally:
            process.terminate()
            process.wait(30)


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds, which may ask a Prometheus."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, condition
        time.sleep(0.2)


def panel_queries(**variables: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the expression of each query of the dashboard, with values for its variables."""
    values = {"instance": ".*", "model": ".*", "__rate_interval": "5s", **variables}
    for panel in json.loads(_DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(f"${name}", value)
            yield panel["title"], expression
