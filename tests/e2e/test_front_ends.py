"""Front ends in processes of their own: what callers and operators see when one of the processes ends."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from headwaiter_client import Client, ModelNotFound, RetryPolicy, Unavailable
from headwaiter_server.front_end import CannotListen
from testbed.minilm import command_path
from testbed.server_process import RunningServer, free_port, running_server
from tests.support.e2e.http_calls import http_status
from tests.support.e2e.in_process_server import serving
from tests.support.e2e.prometheus_metrics import metric_value, metrics_page
from tests.support.e2e.request_messages import token_request
from tests.support.tiers import exhaustive

FLAGS = ["--provider", "cpu", "--front-ends", "2"]
ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Watched:
    """A server with two front ends, and what its log says since the beginning of a test."""

    server: RunningServer
    log: Path
    log_start: int = 0

    def lines(self) -> str:
        return self.log.read_text()[self.log_start :]

    def wait_for_line(self, words: str) -> None:
        end_s = time.monotonic() + 30
        while words not in self.lines():
            assert time.monotonic() < end_s, self.lines()
            time.sleep(0.05)


@contextmanager
def watched_server(bundle: Path, folder: Path, *flags: str) -> Iterator[Watched]:
    log = folder / "log"
    with log.open("wb") as errors, running_server(bundle, [*FLAGS, *flags], log=errors) as server:
        yield Watched(server, log)


@pytest.fixture(scope="module")
def lasting(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_server(text_bundle, tmp_path_factory.mktemp("shared")) as watched:
        yield watched


@pytest.fixture
def shared(lasting: Watched) -> Watched:
    """A server for tests that leave it with two front ends."""
    return replace(lasting, log_start=len(lasting.log.read_text()))


def front_ends(server: RunningServer) -> list[psutil.Process]:
    """Return the processes of the front ends, the oldest first."""
    return sorted(psutil.Process(server.process.pid).children(), key=lambda each: each.create_time())


def busy_front_end(server: RunningServer) -> psutil.Process:
    """Return the front end that has a connection to gRPC."""
    port = int(server.address.rpartition(":")[2])
    (busy,) = [
        each
        for each in front_ends(server)
        if any(one.laddr.port == port and one.status == "ESTABLISHED" for one in each.net_connections("tcp"))
    ]
    return busy


def test_every_front_end_gives_the_same_answers_and_one_page_counts_the_calls_of_all(shared: Watched) -> None:
    server = shared.server
    with ExitStack() as stack:
        before = encoded(server)
        # The kernel picks the front end of a connection at random: with 24 connections, one front end of two has none
        # in one run of 8 million.
        clients = [stack.enter_context(Client(server.address)) for _ in range(24)]
        pooled = [client.encode(["rain"]).pooled for client in clients]
        assert all(np.array_equal(each, pooled[0]) for each in pooled)
        assert len(front_ends(server)) == 2
        assert encoded(server) - before == 24
        assert metric_value(server.metrics_url, "headwaiter_front_ends") == 2
        with pytest.raises(ModelNotFound):
            clients[0].encode(["rain"], model="snow")
        # The log names the process.
        shared.wait_for_line("ModelNotFound")
        assert re.search(r"INFO front end [12]: Encode \S+, from 127\.0\.0\.1:\d+: ModelNotFound", shared.lines())


def encoded(server: RunningServer) -> float:
    return metric_value(server.metrics_url, "headwaiter_requests_total", method="Encode", code="OK")


def test_the_counts_of_a_killed_front_end_stay_on_the_page(shared: Watched) -> None:
    server = shared.server
    before = encoded(server)
    with Client(server.address) as client:
        for _ in range(10):
            client.encode(["rain"])
        # The engine reads the counts twice a second, less often if that takes long.
        time.sleep(3)
        busy_front_end(server).kill()
        shared.wait_for_line("answers requests again")
    assert encoded(server) - before == 10
    assert "headwaiter_inflight_requests 0.0" in metrics_page(server.metrics_url).splitlines()


def test_when_the_engine_is_killed_callers_and_scrapes_fail_at_once_and_no_process_is_left(
    text_bundle: Path, tmp_path: Path
) -> None:
    with (
        watched_server(text_bundle, tmp_path) as watched,
        Client(watched.server.address, retry=ONCE) as client,
    ):
        client.encode(["rain"])
        children = front_ends(watched.server)

        def call_until_it_fails() -> float:
            while True:
                started_s = time.monotonic()
                try:
                    client.encode(["rain"], timeout_s=10)
                except Unavailable:
                    return time.monotonic() - started_s

        with ThreadPoolExecutor(12) as threads:
            failed = [threads.submit(call_until_it_fails) for _ in range(8)]
            time.sleep(0.3)
            # A stopped process would keep the port.
            children[0].suspend()
            watched.server.process.send_signal(signal.SIGSTOP)
            scrapes = [threads.submit(http_status, watched.server.metrics_url) for _ in range(4)]
            time.sleep(0.3)
            watched.server.process.kill()
            assert max(each.result() for each in failed) < 3.0
            assert {each.result() for each in scrapes} == {503}
        _, alive = psutil.wait_procs(children, 10)
        assert not alive
        lines = watched.lines()
        assert all(lines.count(f"ERROR front end {number}: the engine has ended") == 1 for number in (1, 2)), lines
        assert "Traceback" not in lines


@contextmanager
def starting_server(bundle: Path, log: Path, address: str = "127.0.0.1:0") -> Iterator["subprocess.Popen[bytes]"]:
    """Start a server in a process group of its own."""
    arguments = [command_path("headwaiter-server"), str(bundle), *FLAGS, "--address", address, "--metrics-port", "0"]
    with log.open("wb") as errors, subprocess.Popen(arguments, stderr=errors, process_group=0) as server:
        yield server


# Terminals and supervisors send their signals to the whole group.
@pytest.mark.parametrize("number", [signal.SIGTERM, *exhaustive(signal.SIGINT)])
def test_a_signal_to_all_processes_drains_the_server(number: signal.Signals, text_bundle: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    with (
        starting_server(text_bundle, log, address) as server,
        Client(address, retry=ONCE) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        while not client.is_serving(timeout_s=5):
            time.sleep(0.05)
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


@pytest.mark.parametrize("front_end_count", [0, 2])
async def test_two_servers_do_not_share_a_port(front_end_count: int, shared: Watched, text_bundle: Path) -> None:
    address = shared.server.address
    with pytest.raises(CannotListen, match=f"cannot listen on --address {address}"):
        async with serving(text_bundle, address=address, front_ends=front_end_count):
            pass


def test_a_front_end_ignores_the_signals_that_a_supervisor_sends_to_all_processes(shared: Watched) -> None:
    with Client(shared.server.address, retry=ONCE) as client:
        client.encode(["rain"])
        for each in front_ends(shared.server):
            each.send_signal(signal.SIGINT)
            each.terminate()
        time.sleep(0.5)
        client.encode(["rain"])
    assert "has ended" not in shared.lines()


@pytest.mark.exhaustive
def test_a_front_end_that_hangs_does_not_delay_the_stop_and_is_killed(text_bundle: Path, tmp_path: Path) -> None:
    with watched_server(text_bundle, tmp_path, "--drain-s", "1") as watched:
        hanging = front_ends(watched.server)[0]
        hanging.suspend()
        started_s = time.monotonic()
        watched.server.process.terminate()
        assert watched.server.process.wait(60) == 0
        assert time.monotonic() - started_s < 10
        _, alive = psutil.wait_procs([hanging], 5)
        assert not alive


@pytest.mark.exhaustive
def test_a_front_end_that_starts_while_the_server_is_leaving_is_not_ready_and_answers(
    text_bundle: Path, tmp_path: Path
) -> None:
    with watched_server(text_bundle, tmp_path, "--drain-delay-s", "600") as watched:
        server = watched.server
        server.process.terminate()
        watched.wait_for_line("leaving")
        for each in front_ends(server):
            each.kill()
        watched.wait_for_line("front end 1 answers requests again")
        watched.wait_for_line("front end 2 answers requests again")
        for _ in range(8):
            with Client(server.address, retry=ONCE) as client:
                assert not client.is_serving()
                client.encode(["rain"])
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0


def wait_for_children(server: "subprocess.Popen[bytes]", count: int) -> list[psutil.Process]:
    end_s = time.monotonic() + 30
    while len(children := psutil.Process(server.pid).children()) < count:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return children


def test_a_front_end_that_is_killed_while_the_server_starts_ends_the_start_with_one_line(
    text_bundle: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with starting_server(text_bundle, log) as server:
        wait_for_children(server, 1)[0].kill()
        assert server.wait(20) == 1
    assert re.fullmatch(r"headwaiter-server: front end [12] has ended with exit code -9 .*\n", log.read_text())


def test_ctrl_c_while_the_front_ends_start_leaves_no_traceback(text_bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with starting_server(text_bundle, log) as server:
        wait_for_children(server, 2)
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(20) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.exhaustive
def test_a_server_whose_engine_hangs_is_not_serving_until_it_answers_again(text_bundle: Path, tmp_path: Path) -> None:
    with watched_server(text_bundle, tmp_path) as watched, Client(watched.server.address, retry=ONCE) as client:
        process = watched.server.process

        def wait_until_serving_is(serving: bool) -> None:
            end_s = time.monotonic() + 40
            while client.is_serving(timeout_s=5) != serving:
                assert time.monotonic() < end_s
                time.sleep(0.5)

        process.send_signal(signal.SIGSTOP)
        try:
            wait_until_serving_is(False)
        finally:
            process.send_signal(signal.SIGCONT)
        wait_until_serving_is(True)
        assert len(client.encode(["rain"]).lengths) == 1


@pytest.mark.exhaustive
async def test_requests_of_callers_that_have_gone_neither_fill_the_memory_nor_delay_the_next_call(
    shared: Watched,
) -> None:
    server = shared.server
    request = token_request([1] * 64_000, [64] * 1000).SerializeToString()

    def resident_mib() -> int:
        return sum(each.memory_info().rss >> 20 for each in front_ends(server))

    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(server.address, options)) for _ in range(8)
        ]
        calls: list[Any] = [channel.unary_unary("/headwaiter.v1.Encoder/Encode") for channel in channels]
        for call in calls:
            await call(request, timeout=30)
        before_mib = resident_mib()
        server.process.send_signal(signal.SIGSTOP)
        try:
            end_s = time.monotonic() + 4

            async def call_until_the_end(call: Any) -> int:
                count = 0
                while time.monotonic() < end_s:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call(request, timeout=0.3)
                    count += 1
                return count

            counts = await asyncio.gather(*(call_until_the_end(call) for call in calls * 6))
        finally:
            server.process.send_signal(signal.SIGCONT)
        # Kept until the engine reads them, 600 requests of 256 kB take 240 MiB, and delay the next call by 5 s.
        assert sum(counts) > 200
        assert resident_mib() - before_mib < 150
        started_s = time.monotonic()
        await calls[0](token_request([1], [1]).SerializeToString(), timeout=30)
        assert time.monotonic() - started_s < 2
