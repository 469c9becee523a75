"""Connections that say little, too slowly, or never read take neither the memory nor the descriptors of others."""

import asyncio
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import Client, Overloaded, RetryPolicy, TlsConfig
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.rpc import endpoint, incoming
from testbed.server_process import RunningServer, free_port, running_server
from tests.support.e2e.in_process_server import connect, metrics_url, one_front_end, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.e2e.raw_http2 import RawConnection
from tests.support.server_processes import memory_bytes, processes

ENCODE, HEALTH, STREAM = (
    "/headwaiter.v1.Encoder/Encode",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)
MIB = 1 << 20
FEW_DESCRIPTORS = ["bash", "-c", 'ulimit -n 256 && exec "$@"', "bash"]


@pytest.fixture(scope="module")
def attacked(text_bundle: Path) -> Iterator[RunningServer]:
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        yield server


def port_of(server: RunningServer) -> int:
    return int(server.address.rpartition(":")[2])


@pytest.mark.parametrize("path", [ENCODE, HEALTH, STREAM])
def test_messages_that_stop_before_their_end_hold_little_memory(attacked: RunningServer, path: str) -> None:
    with Client(attacked.address) as client:
        client.encode(["rain"])
        before_bytes = memory_bytes(attacked)
        with RawConnection(port_of(attacked)) as attack:
            attack.send_unfinished(path, 60, 6 * MIB, 2.0)
            # 60 messages of 6 MiB would be 360 MiB. Half of the eight slow messages may belong to one connection.
            assert len(attack.ended) >= 50
            assert memory_bytes(attacked) - before_bytes < 128 * MIB
            assert len(client.encode(["rain"]).lengths) == 1


def test_a_caller_that_goes_before_its_reply_leaves_no_traceback(text_bundle: Path, tmp_path: Path) -> None:
    request = pb.EncodeRequest(texts=pb.Texts(values=["bread " * 20] * 20), output=pb.OutputOptions(hidden=True))
    log = tmp_path / "log"
    with log.open("wb") as errors:
        with running_server(text_bundle, ["--provider", "cpu"], log=errors) as server, Client(server.address) as client:
            with RawConnection(port_of(server), window_bytes=0) as gone:
                gone.call("Encode", request.SerializeToString())
                batches = 0
                while not batches:
                    batches = len(client.batches())
                time.sleep(0.2)  # The server begins to send the reply, and waits.
            lines = len(log.read_text().splitlines())
            for _ in range(100):
                if len(log.read_text().splitlines()) > lines:
                    break
                time.sleep(0.05)
        said = log.read_text().splitlines()
        assert len(said) > lines
        assert not any("Traceback" in line for line in said)


def ready_status(server: RunningServer) -> int:
    url = server.metrics_url.replace("/metrics", "/health/ready")
    with urllib.request.urlopen(url, timeout=5) as response:
        return int(response.status)


def test_silent_http_connections_take_no_descriptor_from_grpc_or_from_health_checks(
    text_bundle: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as errors:
        with running_server(text_bundle, ["--provider", "cpu"], FEW_DESCRIPTORS, log=errors) as server:
            host, port = server.metrics_url.split("/")[2].split(":")
            for sent in (b"", b"GET /metrics HTTP/1.1\r\nHost: "):
                with ExitStack() as stack, Client(server.address) as client:
                    for _ in range(300):
                        silent = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                        silent.sendall(sent)
                    assert ready_status(server) == 200
                    assert len(client.encode(["rain"], timeout_s=5).lengths) == 1
        lines = log.read_text().splitlines()
    assert not any("Traceback" in line for line in lines)
    assert 1 <= sum("HTTP connections" in line for line in lines) <= 20


def test_silent_https_connections_take_no_descriptor_from_grpc(text_bundle: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    port = free_port()
    flags = ["--provider", "cpu", "--http-api", "on", "--http-address", f"127.0.0.1:{port}"]
    flags += ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.pem")]
    with running_server(text_bundle, flags, FEW_DESCRIPTORS, waits=False) as server, ExitStack() as stack:
        tls = TlsConfig(ca=tmp_path / "ca.pem")
        with Client(server.address, tls=tls, retry=RetryPolicy(max_attempts=100), timeout_s=60) as client:
            client.encode(["rain"])
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        url = f"https://127.0.0.1:{port}/health/ready"
        with urllib.request.urlopen(url, timeout=5, context=trusted) as response:
            assert response.status == 200
        assert ready_status(server) == 200
        with Client(server.address, tls=tls) as client:
            assert len(client.encode(["rain"], timeout_s=5).lengths) == 1
        assert max(process.num_fds() for process in processes(server)) < 150


async def test_a_message_that_stays_incomplete_is_dropped_and_the_call_told(text_bundle: Path) -> None:
    with patch.object(incoming, "_SLOW_S", 0.05), patch.object(incoming, "_LONGEST_S", 0.2):
        async with serving(text_bundle) as server:
            with RawConnection(server.port) as attack:
                await asyncio.to_thread(attack.send_unfinished, ENCODE, 1, MIB, 1.0)
                assert attack.ended == {1}


async def test_a_reply_that_is_not_taken_in_time_frees_its_share(text_bundle: Path) -> None:
    request = pb.EncodeRequest(texts=pb.Texts(values=["bread " * 20] * 40), output=pb.OutputOptions(hidden=True))
    with patch.object(endpoint, "DELIVERY_S", 0.3):
        limits = {"front_ends": one_front_end(), "max_reply_bytes": 150_000}
        async with serving(text_bundle, **limits) as server, connect(server) as client:
            with RawConnection(server.port, window_bytes=0) as greedy:
                refused = False
                async with asyncio.timeout(10):
                    while not refused:
                        # Again and again, because the server may refuse this call while it answers the other caller.
                        greedy.call("Encode", request.SerializeToString())
                        try:
                            await client.encode(["bread " * 20] * 20, hidden=True)
                        except Overloaded:
                            refused = True
                    while refused:
                        await asyncio.sleep(0.05)
                        try:
                            await client.encode(["bread " * 20] * 20, hidden=True)
                        except Overloaded:
                            continue
                        refused = False


async def test_unread_replies_of_small_methods_count_too(text_bundle: Path) -> None:
    def refusals() -> float:
        labels = {"method": "ListBatches", "code": "RESOURCE_EXHAUSTED"}
        return metric_value(metrics_url(server), "headwaiter_requests_total", **labels)

    async with serving(text_bundle, max_reply_bytes=20_000) as server, connect(server) as client:
        for _ in range(30):
            await client.encode(["rain"])
        with RawConnection(server.port, window_bytes=0) as greedy:
            for _ in range(30):
                greedy.call("ListBatches", b"")
            await wait_until(client, lambda: refusals() > 0)


async def test_a_health_watcher_hears_of_the_drain_although_another_watcher_has_left(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        first, second = (stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2))
        for watch in (first, second):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        first.cancel()
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(server.drain())
        async with asyncio.timeout(5):
            assert (await second.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await draining


async def test_health_knows_no_other_services_and_has_a_limit_of_watchers(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        unknown = health_pb2.HealthCheckRequest(service="nobody")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(unknown)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        # Callers need no token, so the error names no model.
        async with connect(server) as client:
            assert (await client.model()).model.name not in str(refused.value.details())
        assert (await stub.Watch(unknown).read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(200)]
        read = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        refusals = [each for each in read if isinstance(each, grpc.aio.AioRpcError)]
        assert 50 <= len(refusals) <= 100
        assert {each.code() for each in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
