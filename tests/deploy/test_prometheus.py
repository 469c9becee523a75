"""A real Prometheus scrapes a real server: every panel has data, and no alert fires.

Prometheus of the package `prometheus` of Debian or Ubuntu is enough. That each alert fires in its fault is what
promtool's unit tests say: see test_dashboard.py.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import isnan
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from headwaiter_client import Client
from testbed.server_process import free_port, running_server
from tests.deploy.test_dashboard import DASHBOARD, PROMETHEUS

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed: install Prometheus"),
]
# The variables of the dashboard.
VARIABLES = {"$instance": ".*", "$model": ".*", "$__rate_interval": "5s"}
# Panels that have no data without a GPU.
GPU_PANELS = {"GPU memory in use"}


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Callable[..., Any]]:
    """Start a Prometheus that scrapes HOST:PORT twice a second, and yield a function that asks the Prometheus.

    The alerts fire as soon as their expression holds.
    """
    rules = re.sub(r"^ +for: .*\n", "", (PROMETHEUS / "alerts.yml").read_text(), flags=re.MULTILINE)
    (folder / "alerts.yml").write_text(rules)
    configuration = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "headwaiter", "static_configs": [{"targets": [target]}]}],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    port = free_port()
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"]

    def ask(path: str, **parameters: str) -> Any:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as reply:
            return json.load(reply)["data"]

    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield ask
        finally:
            process.terminate()
            process.wait(30)


def test_in_calm_every_panel_has_data_and_no_alert_fires(text_bundle: Path, tmp_path: Path) -> None:
    with (
        running_server(text_bundle, ["--provider", "cpu", "--threads", "1"]) as server,
        running_prometheus(tmp_path, server.metrics_url.split("/")[2]) as ask,
        Client(server.address) as client,
    ):

        def values(expression: str) -> list[float]:
            return [float(each["value"][1]) for each in ask("query", query=expression)["result"]]

        def calls_per_s() -> float:
            with suppress(URLError):
                return sum(values("sum(rate(headwaiter_requests_total[5s]))"))
            return 0.0

        end_s = time.monotonic() + 60
        while calls_per_s() < 1:
            assert time.monotonic() < end_s
            client.encode(["the bread is fresh"])
            time.sleep(0.1)
        for _ in range(50):
            client.encode(["the bread is fresh"])
            time.sleep(0.1)
        for panel in DASHBOARD["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                found = values(expression)
                assert panel["title"] in GPU_PANELS or (found and not any(map(isnan, found))), (expression, found)
        assert [each["labels"] for each in ask("alerts")["alerts"] if each["state"] == "firing"] == []
