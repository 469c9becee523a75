"""A real Prometheus scrapes real servers: panels have data, alerts fire in their faults only, and the panels say why.

Prometheus of the package `prometheus` of Debian or Ubuntu is enough.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
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
from tests.support.deploy.slow_server import SLOW_MODELS

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed: install Prometheus"),
]
CPU = ["--provider", "cpu", "--threads", "1"]
TEXTS = ["the bread is fresh", "rain falls on the stone"]
# Panels that have no data without a GPU.
GPU_PANELS = {"GPU memory in use"}


def panel(title: str, **variables: str) -> str:
    """Return the first query of a panel."""
    return next(expression for name, expression in panel_queries(**variables) if name == title)


async def call(
    address: str, seconds: float, model: str = "", requesters: int = 1, pause_s: float = 0.0, **options: Any
) -> None:
    """Let requesters call a model one after another for a while; errors are the server's matter."""
    end_s = time.monotonic() + seconds
    texts = options.pop("texts", TEXTS[:1])
    async with AsyncClient(address, retry=RetryPolicy(max_attempts=1), model=model) as client:

        async def ask() -> None:
            while time.monotonic() < end_s:
                with suppress(HeadwaiterError):
                    await client.encode(texts, **options)
                await asyncio.sleep(pause_s)

        await asyncio.gather(*(ask() for _ in range(requesters)))


@contextmanager
def called(address: str) -> Iterator[None]:
    """Call a server ten times a second inside the block."""
    ends = Event()

    def ask() -> None:
        with Client(address) as client:
            while not ends.wait(0.1):
                client.encode(TEXTS[:1])

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


@dataclass
class SlowServer:
    """A server of the models "a" and "b", whose batches can be made slow.

    Attributes:
        folder: the folder of its models.
    """

    server: RunningServer
    folder: Path
    file: Path

    def slow_down(self, text: str) -> None:
        """Set the seconds that batches of models take longer, in JSON."""
        changed = self.file.with_suffix(".new")
        changed.write_text(text)
        changed.rename(self.file)


@pytest.fixture(scope="module")
def slow(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowServer]:
    """A server with batches of at most 16 tokens."""
    folder = tmp_path_factory.mktemp("slow")
    for name in "ab":
        shutil.copytree(text_bundle, folder / "models" / name / "1")
    file = folder / "slow.json"
    file.write_text("{}")
    flags = [*CPU, "--models", str(folder / "models"), "--watch-s", "0.5", "--token-budget", "16"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SLOW_MODELS, str(file))
        program = [sys.executable, "-m", "tests.support.deploy.slow_server"]
        with running_server(None, flags, program=program) as server:
            yield SlowServer(server, folder / "models", file)


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
    calm: RunningServer, slow: SlowServer, secure: RunningServer, text_bundle: Path, tmp_path: Path
) -> None:
    slow.slow_down("{}")
    port = free_port()
    mortal = [*CPU[2:], "--provider", "auto", "--metrics-port", str(port)]
    with ExitStack() as stack:
        front_ends = stack.enter_context(running_server(text_bundle, [*CPU, "--front-ends", "2"]))
        targets = {"calm": calm, "slow": slow.server, "secure": secure, "front ends": front_ends}
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

        bad = slow.folder / ".2"
        shutil.copytree(text_bundle, bad)
        (bad / "packed-cpu.fp32.onnx").write_bytes(b"not a graph")
        bad.rename(slow.folder / "a" / "2")
        fires("HeadwaiterVersionFailed", "slow")

        slow.slow_down('{"a": 0.5}')
        flood = Thread(target=asyncio.run, args=(call(slow.server.address, 60, "a", 400, 0.2),))
        late = Thread(target=asyncio.run, args=(call(slow.server.address, 60, "a", 20, 0.2, timeout_s=0.6),))
        flood.start()
        late.start()
        fires("HeadwaiterQueueIsLong", "slow")
        fires("HeadwaiterRefusesRequests", "slow")
        fires("HeadwaiterMissesDeadlines", "slow")
        assert prometheus.firing() == staged
        assert {alert for alert, _ in staged} | {"HeadwaiterRunsOnCpu"} == {rule["alert"] for rule in RULES}
        slow.slow_down("{}")
        flood.join()
        late.join()


@dataclass(frozen=True)
class Case:
    """Why a model is slow, and what the panels show.

    Attributes:
        slow_s: the seconds that each batch takes longer, in JSON.
        a: how "a" is called, beside two calls a second to "b".
        model: the slow model.
        stage: the stage that takes most of its requests' time.
        busiest: the model that keeps the device busy; empty if the device is mostly idle.
    """

    slow_s: str
    a: dict[str, Any]
    model: str
    stage: str
    busiest: str


CASES = {
    "the batches of a take long": Case('{"a": 0.2}', {"pause_s": 0.4}, "a", "compute", ""),
    "a has more work than its device can do": Case('{"a": 0.02}', {"requesters": 60}, "a", "queue", "a"),
    "b waits for the batches of a": Case('{"a": 0.5}', {"requesters": 8}, "b", "queue", "a"),
    "the texts of a are long": Case(
        "{}", {"texts": ["bread and rain " * 30_000], "truncation": "right"}, "a", "tokenize", ""
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_panels_say_which_model_is_slow_and_why(
    name: str, slow: SlowServer, tmp_path: Path, record_property: Any
) -> None:
    case, seconds = CASES[name], 10.0
    slow.slow_down(case.slow_s)
    with running_prometheus(tmp_path, {"slow": target(slow.server)}) as prometheus:

        async def load() -> None:
            address = slow.server.address
            await asyncio.gather(
                call(address, seconds, "a", **case.a), call(address, seconds, "b", pause_s=0.5), look_in(seconds - 1)
            )

        shown: dict[str, dict[str, float]] = {}

        async def look_in(wait_s: float) -> None:
            await asyncio.sleep(wait_s)
            for title in ("Stages, p50", "Run time of batches", "Busy share of each device", "Request duration"):
                found = prometheus.query(panel(title, __rate_interval="8s"))
                for labels, value in found.items():
                    named = dict(labels)
                    shown.setdefault(title, {})[" ".join(filter(None, map(named.get, ("model", "stage"))))] = value

        asyncio.run(load())
    stages = {key.split()[1]: value for key, value in shown["Stages, p50"].items() if key.startswith(case.model)}
    busy, durations = shown["Busy share of each device"], shown["Request duration"]
    run_s = shown["Run time of batches"]
    record_property(
        name,
        "; ".join(
            f"{model}: p50 {durations[model] * 1e3:.0f} ms, "
            + ", ".join(
                f"{key.split()[1]} {value * 1e3:.0f}" for key, value in shown["Stages, p50"].items() if key[0] == model
            )
            + f"; batch {run_s[model] * 1e3:.0f} ms, busy {busy[model]:.0%}"
            for model in "ab"
        ),
    )
    assert max(stages, key=stages.__getitem__) == case.stage, shown
    assert (max(busy, key=busy.__getitem__) if sum(busy.values()) > 0.7 else "") == case.busiest, shown
    assert case.busiest or durations[case.model] == max(durations.values()), shown
