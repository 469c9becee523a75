"""Front ends in processes of their own: what callers and operators see when one of the processes ends."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from headwaiter_client import Client, ModelNotFound, RetryPolicy, Unavailable
from testbed.minilm import command_path
from testbed.server_process import RunningServer, free_port, running_server
from tests.e2e.prometheus_metrics import metric_value, metrics_page

FLAGS = ["--provider", "cpu", "--front-ends", "2"]
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@contextmanager
def server_of(bundle: Path, log: Path, *flags: str) -> Iterator[RunningServer]:
    with log.open("wb") as errors, running_server(bundle, [*FLAGS, *flags], log=errors) as server:
        yield server


@pytest.fixture(scope="module")
def shared(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    """A server and its log, for tests that end none of its processes."""
    log = tmp_path_factory.mktemp("shared") / "log"
    with server_of(text_bundle, log) as server:
        yield server, log


def front_ends(server: RunningServer) -> list[psutil.Process]:
    """Return the processes of the front ends, the oldest first."""
    return sorted(psutil.Process(server.process.pid).children(), key=lambda each: each.create_time())


def wait_for_line(log: Path, words: str) -> None:
    end_s = time.monotonic() + 30
    while words not in log.read_text():
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.05)


def busy_front_end(server: RunningServer) -> psutil.Process:
    """Return the front end that has a connection to gRPC."""
    port = int(server.address.rpartition(":")[2])
    (busy,) = [
        each
        for each in front_ends(server)
        if any(one.laddr.port == port and one.status == "ESTABLISHED" for one in each.net_connections("tcp"))
    ]
    return busy


def test_every_front_end_gives_the_same_answers_and_one_page_counts_the_calls_of_all(
    shared: tuple[RunningServer, Path],
) -> None:
    def answered() -> float:
        return metric_value(server.metrics_url, "headwaiter_requests_total", method="Encode", code="OK")

    server, log = shared
    with ExitStack() as stack:
        before = answered()
        # The kernel picks the front end of a connection at random: with 24 connections, one front end of two has none
        # in one run of 8 million.
        clients = [stack.enter_context(Client(server.address)) for _ in range(24)]
        pooled = [client.encode(["rain"]).pooled for client in clients]
        assert all(np.array_equal(each, pooled[0]) for each in pooled)
        assert len(front_ends(server)) == 2
        assert answered() - before == 24
        assert metric_value(server.metrics_url, "headwaiter_front_ends") == 2
        with pytest.raises(ModelNotFound):
            clients[0].encode(["rain"], model="snow")
        # The log names the process.
        assert re.search(r"INFO front end [12]: Encode \S+: ModelNotFound", log.read_text())


def test_a_killed_front_end_costs_no_retrying_caller_a_call_and_comes_back(text_bundle: Path, log: Path) -> None:
    with server_of(text_bundle, log) as server, ExitStack() as stack:
        clients = [stack.enter_context(Client(server.address, timeout_s=30)) for _ in range(8)]
        expected = clients[0].encode(["rain"]).pooled
        came_back = threading.Event()

        def call(client: Client) -> int:
            calls = 0
            while not came_back.is_set():
                assert np.array_equal(client.encode(["rain"]).pooled, expected)
                calls += 1
            return calls

        with ThreadPoolExecutor(8) as threads:
            counts = [threads.submit(call, client) for client in clients]
            time.sleep(0.3)
            front_ends(server)[0].kill()
            try:
                wait_for_line(log, "answers requests again")
                time.sleep(0.3)
            finally:
                came_back.set()
            assert all(each.result() for each in counts)
        assert log.read_text().count("has ended with exit code -9") == 1
        assert metric_value(server.metrics_url, "headwaiter_front_end_restarts_total") == 1
        assert metric_value(server.metrics_url, "headwaiter_front_ends") == 2


def test_the_counts_of_a_killed_front_end_stay_on_the_page(text_bundle: Path, log: Path) -> None:
    with server_of(text_bundle, log) as server:
        with Client(server.address) as client:
            for _ in range(10):
                client.encode(["rain"])
            # The engine reads the counts twice a second, less often if that takes long.
            time.sleep(3)
            busy_front_end(server).kill()
            wait_for_line(log, "answers requests again")
        assert metric_value(server.metrics_url, "headwaiter_requests_total", method="Encode") == 10
        assert "headwaiter_inflight_requests 0.0" in metrics_page(server.metrics_url).splitlines()


def test_when_the_engine_is_killed_callers_get_unavailable_at_once_and_no_process_is_left(
    text_bundle: Path, log: Path
) -> None:
    with server_of(text_bundle, log) as server, Client(server.address, retry=ONCE) as client:
        client.encode(["rain"])
        children = front_ends(server)

        def call_until_it_fails() -> float:
            while True:
                started_s = time.monotonic()
                try:
                    client.encode(["rain"], timeout_s=10)
                except Unavailable:
                    return time.monotonic() - started_s

        with ThreadPoolExecutor(8) as threads:
            failed = [threads.submit(call_until_it_fails) for _ in range(8)]
            time.sleep(0.3)
            server.process.kill()
            assert max(each.result() for each in failed) < 3.0
        _, alive = psutil.wait_procs(children, 10)
        assert not alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_drains_the_server(text_bundle: Path, log: Path, number: signal.Signals) -> None:
    port = free_port()
    arguments = [command_path("headwaiter-server"), str(text_bundle), *FLAGS, "--address", f"127.0.0.1:{port}"]
    with (
        log.open("wb") as errors,
        # Terminals and supervisors send their signals to the whole group.
        subprocess.Popen([*arguments, "--metrics-port", "0"], stderr=errors, process_group=0) as server,
        Client(f"127.0.0.1:{port}", retry=ONCE) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        wait_for_line(log, "serving on port")
        children = psutil.Process(server.pid).children()
        calls = threads.submit(call_until_refused, client)
        time.sleep(0.3)
        os.killpg(server.pid, number)
        # The server refuses a call when it drains; it breaks none.
        assert calls.result(30) > 0
        assert server.wait(20) == 0
        _, alive = psutil.wait_procs(children, 5)
        assert not alive
    assert "Traceback" not in log.read_text()
    assert "has ended with exit code" not in log.read_text()


def call_until_refused(client: Client) -> int:
    """Make calls until the server refuses one because it drains, and return the number of answers."""
    answers = 0
    while True:
        try:
            client.encode(["rain"])
        except Unavailable as error:
            if "shutting down" in str(error):
                return answers
            raise
        answers += 1


@pytest.mark.parametrize("front_end_count", ["0", "2"])
def test_two_servers_do_not_share_a_port(
    front_end_count: str, shared: tuple[RunningServer, Path], text_bundle: Path
) -> None:
    address = shared[0].address
    arguments = [command_path("headwaiter-server"), str(text_bundle), "--provider", "cpu", "--metrics-port", "0"]
    command = [*arguments, "--address", address, "--front-ends", front_end_count]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert f"cannot listen on --address {address}" in second.stderr


def test_a_front_end_ignores_the_signal_that_a_supervisor_sends_to_all_processes(
    shared: tuple[RunningServer, Path],
) -> None:
    server, log = shared
    with Client(server.address, retry=ONCE) as client:
        client.encode(["rain"])
        for each in front_ends(server):
            each.terminate()
        time.sleep(0.5)
        client.encode(["rain"])
    assert "has ended" not in log.read_text()


def test_a_front_end_that_hangs_does_not_delay_the_stop_and_is_killed(text_bundle: Path, log: Path) -> None:
    with server_of(text_bundle, log, "--drain-s", "1") as server:
        hanging = front_ends(server)[0]
        hanging.suspend()
        started_s = time.monotonic()
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert time.monotonic() - started_s < 10
        _, alive = psutil.wait_procs([hanging], 5)
        assert not alive


def test_a_front_end_that_is_killed_while_the_server_starts_ends_the_start_with_one_line(
    text_bundle: Path, log: Path
) -> None:
    arguments = [command_path("headwaiter-server"), str(text_bundle), *FLAGS, "--address", "127.0.0.1:0"]
    with (
        log.open("wb") as errors,
        subprocess.Popen([*arguments, "--metrics-port", "0"], stderr=errors) as server,
    ):
        end_s = time.monotonic() + 30
        while not (children := psutil.Process(server.pid).children()):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        children[0].kill()
        assert server.wait(20) == 1
    assert re.fullmatch(r"headwaiter-server: front end [12] has ended with exit code -9 .*\n", log.read_text())


def test_ctrl_c_while_the_front_ends_start_leaves_no_traceback(text_bundle: Path, log: Path) -> None:
    arguments = [command_path("headwaiter-server"), str(text_bundle), *FLAGS, "--address", "127.0.0.1:0"]
    with (
        log.open("wb") as errors,
        subprocess.Popen([*arguments, "--metrics-port", "0"], stderr=errors, process_group=0) as server,
    ):
        end_s = time.monotonic() + 30
        while len(psutil.Process(server.pid).children()) < 2:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        # The interpreters have started, and import the front end.
        time.sleep(0.15)
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(20) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.exhaustive
def test_a_server_whose_engine_hangs_is_not_serving_until_it_answers_again(text_bundle: Path, log: Path) -> None:
    def serves(client: Client) -> bool:
        return client.is_serving(timeout_s=5)

    with server_of(text_bundle, log) as server, Client(server.address, retry=ONCE) as client:
        assert serves(client)
        server.process.send_signal(signal.SIGSTOP)
        try:
            end_s = time.monotonic() + 40
            while serves(client):
                assert time.monotonic() < end_s
                time.sleep(0.5)
        finally:
            server.process.send_signal(signal.SIGCONT)
        end_s = time.monotonic() + 20
        while not serves(client):
            assert time.monotonic() < end_s
            time.sleep(0.5)
        assert len(client.encode(["rain"]).lengths) == 1
