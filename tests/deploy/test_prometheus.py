"""A real Prometheus scrapes real servers: panels have data, and alerts fire in their faults only.

Prometheus of the package `prometheus` of Debian or Ubuntu is enough.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import isnan
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
import trustme

from headwaiter_client import AsyncClient, Client, RetryPolicy
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.runtime.hardware import compute_capability
from testbed.prometheus import panel_queries, running_prometheus, wait_until
from testbed.server_process import RunningServer, free_port, running_server
from tests.deploy.test_dashboard import RULES
from tests.support.deploy.slow_server import SLOW_FILE

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed: install Prometheus"),
]
CPU = ["--provider", "cpu", "--threads", "1"]
# Panels that have no data without a GPU.
GPU_PANELS = {"GPU memory in use"}


async def call_for_a_minute(address: str, requesters: int, **options: Any) -> None:
    """Let requesters call one after another; errors are the server's matter."""
    end_s = time.monotonic() + 60
    async with AsyncClient(address, retry=RetryPolicy(max_attempts=1)) as client:

        async def ask() -> None:
            while time.monotonic() < end_s:
                with suppress(HeadwaiterError):
                    await client.encode(["the bread is fresh"], **options)
                await asyncio.sleep(0.2)

        await asyncio.gather(*(ask() for _ in range(requesters)))


@contextmanager
def called(address: str) -> Iterator[None]:
    """Call a server ten times a second inside the block."""
    ends = Event()

    def ask() -> None:
        with Client(address) as client:
            while not ends.wait(0.1):
                client.encode(["the bread is fresh"])

    caller = Thread(target=ask)
    caller.start()
    try:
        yield
    finally:
        ends.set()
        caller.join()


def target(server: RunningServer) -> str:
    """Return HOST:PORT of the metrics of a server."""
    return server.metrics_url.split("/")[2]


@pytest.fixture(scope="module")
def calm(text_bundle: Path) -> Iterator[RunningServer]:
    """A server without faults, which is called ten times a second."""
    with running_server(text_bundle, CPU) as server, called(server.address):
        yield server


def test_in_calm_every_panel_has_data_and_no_alert_fires(calm: RunningServer, tmp_path: Path) -> None:
    with running_prometheus(tmp_path, {"calm": target(calm)}) as prometheus:
        wait_until(lambda: prometheus.value("sum(rate(headwaiter_requests_total[5s]))") > 5)
        time.sleep(5)
        for title, expression in panel_queries():
            values = list(prometheus.query(expression).values())
            assert title in GPU_PANELS or (values and not any(map(isnan, values))), (title, expression, values)
        assert prometheus.firing() == set()


@pytest.fixture
def secure(text_bundle: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose certificate expires in five days."""
    expires = datetime.now(UTC) + timedelta(days=5)
    pair = trustme.CA().issue_cert("localhost", not_after=expires)
    pair.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with running_server(text_bundle, [*CPU, *tls], waits=False) as server:
        yield server


def test_each_alert_fires_in_its_fault_and_only_there(
    calm: RunningServer, secure: RunningServer, text_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, slow_file = tmp_path / "models", tmp_path / "slow"
    shutil.copytree(text_bundle, models / "a" / "1")
    monkeypatch.setenv(SLOW_FILE, str(slow_file))
    slow_program = [sys.executable, "-m", "tests.support.deploy.slow_server"]
    slow_flags = [*CPU, "--models", str(models), "--watch-s", "0.5", "--token-budget", "16"]
    port = free_port()
    mortal = [*CPU[2:], "--provider", "auto", "--metrics-port", str(port)]
    with ExitStack() as stack:
        front_ends = stack.enter_context(running_server(text_bundle, [*CPU, "--front-ends", "2"]))
        slow = stack.enter_context(running_server(None, slow_flags, program=slow_program))
        targets = {"calm": calm, "slow": slow, "secure": secure, "front ends": front_ends}
        addresses = {name: target(server) for name, server in targets.items()}
        addresses["mortal"] = f"127.0.0.1:{port}"
        prometheus = stack.enter_context(running_prometheus(tmp_path, addresses))
        staged: set[tuple[str, str]] = set()

        def fires(alert: str, instance: str) -> None:
            wait_until(lambda: (alert, instance) in prometheus.firing())
            staged.add((alert, instance))

        fires("HeadwaiterCertificateExpires", "secure")

        # The mortal server has not started yet.
        fires("HeadwaiterDown", "mortal")
        for starts in range(2):
            with running_server(text_bundle, mortal):
                wait_until(lambda: prometheus.value('up{instance="mortal"}') == 1)
                if starts:
                    fires("HeadwaiterRestarted", "mortal")
                    if compute_capability(0) is None:
                        fires("HeadwaiterRunsOnCpu", "mortal")
                    wait_until(lambda: ("HeadwaiterDown", "mortal") not in prometheus.firing())
                else:
                    assert ("HeadwaiterRestarted", "mortal") not in prometheus.firing()
        staged.discard(("HeadwaiterRunsOnCpu", "mortal"))  # It ends with the server.

        psutil.Process(front_ends.process.pid).children()[0].kill()
        fires("HeadwaiterFrontEndRestarted", "front ends")
        wait_until(lambda: prometheus.value('headwaiter_front_ends{instance="front ends"}') == 2)

        bad = models / ".2"
        shutil.copytree(text_bundle, bad)
        (bad / "packed-cpu.fp32.onnx").write_bytes(b"not a graph")
        bad.rename(models / "a" / "2")
        fires("HeadwaiterVersionFailed", "slow")

        slow_file.touch()
        flood = Thread(target=asyncio.run, args=(call_for_a_minute(slow.address, 400),))
        late = Thread(target=asyncio.run, args=(call_for_a_minute(slow.address, 20, timeout_s=0.6),))
        flood.start()
        late.start()
        fires("HeadwaiterQueueIsLong", "slow")
        fires("HeadwaiterRefusesRequests", "slow")
        fires("HeadwaiterMissesDeadlines", "slow")
        assert prometheus.firing() == staged
        assert {alert for alert, _ in staged} | {"HeadwaiterRunsOnCpu"} == {rule["alert"] for rule in RULES}
        slow_file.unlink()
        flood.join()
        late.join()
