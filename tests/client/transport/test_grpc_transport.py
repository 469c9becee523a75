"""Both clients send failed calls again where this is safe, and skip replicas that are down."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from headwaiter_client import Cancelled, Client, DeadlineExceeded, RetryPolicy, Unavailable
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport
from tests.support.client.both_clients import open_client
from tests.support.client.client_runner import TEXTS
from tests.support.client.fake_server import Call, FakeServer

FAST_RETRY = RetryPolicy(max_attempts=3, initial_backoff_s=0.001, max_backoff_s=0.001)
RETRY_FAST = {"retry": FAST_RETRY}


@pytest.fixture
def other(starts_processes: None) -> Iterator[FakeServer]:
    """A second replica."""
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def refusing_address() -> str:
    """An address that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent_address(starts_processes: None) -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _replicas(*servers: FakeServer | str) -> SimpleNamespace:
    """Return a stand-in for the `server` argument of `call` with the addresses of several replicas."""
    return SimpleNamespace(address=[server if isinstance(server, str) else server.address for server in servers])


def _retry_info(milliseconds: int) -> Message:
    delay = Duration()
    delay.FromMilliseconds(milliseconds)
    retry: Message = error_details_pb2.RetryInfo(retry_delay=delay)
    return retry


# tests/client/test_errors.py has the class of each code, and test_retries.py the classes that are sent again.
def test_a_call_that_a_server_cannot_take_now_is_sent_again(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "not now")
    server.refusals_left = 1
    result = call(server, "encode_tokens", [[1, 2]], request_id="r", connect=RETRY_FAST)
    assert result.lengths.tolist() == [2]
    first, second = server.requests
    assert first == second


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "list of one"])
@pytest.mark.parametrize("timeout_s", [1.5, 20])
def test_a_call_begins_when_the_server_has_started(
    call: Call, server: FakeServer, in_a_list: bool, timeout_s: float
) -> None:
    info = error_details_pb2.ErrorInfo(reason="STARTING", domain="headwaiter")
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting", info, _retry_info(1000))
    server.refuses_health_checks, server.serving = False, False

    def start() -> None:
        server.refusal, server.serving = None, True

    timer = threading.Timer(0.5, start)
    timer.start()
    replicas = _replicas(server) if in_a_list else server
    # The client asks for the health of the server after 0.1, 0.3 and 0.7 s.
    encoding = call(replicas, "encode", ["a"], timeout_s=timeout_s, connect={"retry": RetryPolicy()})
    assert encoding.lengths.tolist() == [3]
    timer.join()


async def test_health_checks_do_not_use_up_the_retries_of_calls(client_class: Any, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting")
    async with open_client(client_class, server.address, retry=FAST_RETRY) as client:
        for _ in range(20):
            assert not await client.is_serving()
        with pytest.raises(Unavailable):
            await client.encode(["a"])
    assert len(server.requests) == FAST_RETRY.max_attempts


@pytest.mark.parametrize("wait", ["reply", "retry", "server that is down", "first replica"])
async def test_closing_a_client_ends_its_calls(
    client_class: Any, server: FakeServer, silent_address: str, wait: str
) -> None:
    async with open_client(client_class, [silent_address] if wait == "first replica" else server.address) as client:
        match wait:
            case "reply":
                server.released.clear()
            case "retry":
                server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(25_000))
            case "server that is down":
                await client.encode(["a"])
                server.stop()
        calls = [asyncio.ensure_future(client.encode(texts, request_id="r")) for texts in (["a"], TEXTS)]
        await asyncio.sleep(0.3)
        closed_s = time.monotonic()
        await client.close()
        errors: list[Any] = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
        assert time.monotonic() - closed_s < 1
    assert [type(error) for error in errors] == [Cancelled] * 2
    assert errors[0].request_id == "r"


@pytest.mark.parametrize(
    ("refusals", "code"),
    [(0, grpc.StatusCode.UNAVAILABLE), (2, grpc.StatusCode.UNAVAILABLE), (1, grpc.StatusCode.CANCELLED)],
)
async def test_replicas_take_turns_even_if_they_refused_health_checks(
    client_class: Any,
    server: FakeServer,
    other: FakeServer,
    refusals: int,
    code: grpc.StatusCode,
) -> None:
    server.refuse(code, "not now")
    server.refusals_left = refusals
    async with open_client(client_class, [server.address, other.address]) as client:
        while not (server.requests and other.requests):
            await client.encode_tokens([[1]])
        before = len(server.requests), len(other.requests)
        for _ in range(6):
            await client.encode_tokens([[1]])
    assert (len(server.requests) - before[0], len(other.requests) - before[1]) == (3, 3)


@pytest.mark.parametrize("bad", ["refusing_address", "silent_address"])
def test_an_unreachable_replica_fails_no_call(
    call: Call, server: FakeServer, bad: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(bad)
    for _ in range(4):
        assert call(_replicas(address, server), "encode", ["a"], timeout_s=10).lengths.tolist() == [3]
    assert len(server.requests) == 4


@pytest.mark.parametrize("replicas", [None, 1, 2], ids=["server", "list of one", "list of two"])
def test_a_server_that_never_answered_is_unavailable_within_two_seconds(
    call: Call, refusing_address: str, replicas: int | None
) -> None:
    address = SimpleNamespace(address=[refusing_address] * replicas if replicas else refusing_address)
    started_s = time.monotonic()
    with pytest.raises(Unavailable, match="Connection refused"):
        call(address, "encode", ["a"], connect={"retry": RetryPolicy()})
    assert time.monotonic() - started_s < 2


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "list of one"])
def test_a_call_waits_for_a_first_answer_until_its_deadline(call: Call, silent_address: str, in_a_list: bool) -> None:
    address = SimpleNamespace(address=[silent_address] if in_a_list else silent_address)
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s") as late:
        call(address, "encode", ["a"], timeout_s=0.2, request_id="r")
    assert late.value.request_id == "r"


async def test_a_call_without_retries_fails_at_once_while_the_server_is_down(
    client_class: Any, server: FakeServer
) -> None:
    async with open_client(client_class, [server.address], retry=RetryPolicy(max_attempts=1)) as client:
        await client.encode_tokens([[1]])
        server.stop()
        started_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await client.encode_tokens([[1]])
        assert time.monotonic() - started_s < 2


def test_closing_a_stream_ends_its_wait_for_a_server_that_is_down(server: FakeServer) -> None:
    with Client(server.address) as client:
        results = client.encode_stream(TEXTS)
        next(results)
        server.stop()
        time.sleep(0.3)
        started_s = time.monotonic()
        results.close()
        assert time.monotonic() - started_s < 0.5


async def test_a_call_leaves_a_replica_that_answers_neither_the_call_nor_a_health_check(
    client_class: Any, server: FakeServer, other: FakeServer
) -> None:
    async with open_client(client_class, [server.address, other.address], timeout_s=2) as client:
        while not (server.requests and other.requests):
            await client.encode_tokens([[1]])
        server.released.clear()
        for _ in range(2):
            assert (await client.encode_tokens([[1]])).lengths.tolist() == [1]
        server.released.set()


async def test_an_async_client_that_is_closed_sends_no_health_check(server: FakeServer) -> None:
    transport = AsyncGrpcTransport(Connection([server.address]), FAST_RETRY)
    await transport.close()
    transport._start_probes()  # As an answer that arrives while the client is being closed may do.
    assert not transport._health_checks
