"""Both clients send failed calls again where this is safe, and skip replicas that are down."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from headwaiter_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    HeadwaiterError,
    Overloaded,
    RetryPolicy,
    Starting,
    Unavailable,
)
from headwaiter_client.calls.steps import METHODS
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport, GrpcTransport
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.async_encode import async_encode
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


@contextmanager
def _refused_once(server: FakeServer, code: grpc.StatusCode, *details: Message) -> Iterator[None]:
    """Refuse the next call, and answer later calls."""
    server.refuse(code, "not now", *details)
    server.refusals_left = 1
    yield
    assert server.refusals_left == 0


@pytest.mark.parametrize(
    ("code", "details"),
    [
        pytest.param(grpc.StatusCode.UNAVAILABLE, [], id="unavailable"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, [_retry_info(1)], id="overloaded"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, [], id="the rate limit of a proxy"),
        pytest.param(grpc.StatusCode.CANCELLED, [], id="cancelled by a server that stops"),
    ],
)
def test_a_call_that_a_server_cannot_take_now_is_sent_again(
    call: Call, server: FakeServer, code: grpc.StatusCode, details: list[Message]
) -> None:
    with _refused_once(server, code, *details):
        result = call(server, "encode_tokens", [[1, 2]], request_id="r", connect=RETRY_FAST)
    assert result.lengths.tolist() == [2]
    first, second = server.requests
    assert first == second


# tests/client/test_errors.py has the class of each code, and test_retries.py the classes that are sent again.
@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED])
def test_a_call_that_would_fail_again_is_sent_once(call: Call, server: FakeServer, code: grpc.StatusCode) -> None:
    server.refuse(code, "no")
    with pytest.raises(HeadwaiterError):
        call(server, "encode", ["a"], connect=RETRY_FAST)
    assert sum(isinstance(request, pb.EncodeRequest) for request in server.requests) == 1


def test_a_call_waits_for_a_starting_server(call: Call, server: FakeServer) -> None:
    server.refuse(
        grpc.StatusCode.UNAVAILABLE,
        "starting",
        error_details_pb2.ErrorInfo(reason="STARTING", domain="headwaiter"),
        _retry_info(1),
    )
    server.refuses_health_checks, server.refusals_left = False, 5
    assert call(server, "encode_tokens", [[1, 2]], connect=RETRY_FAST).lengths.tolist() == [2]
    assert len(server.requests) == 6


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


def test_a_server_that_starts_for_longer_than_the_timeout_is_named(call: Call, server: FakeServer) -> None:
    info = error_details_pb2.ErrorInfo(reason="STARTING", domain="headwaiter")
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting", info, _retry_info(1))
    server.refuses_health_checks, server.serving = False, False
    with pytest.raises(Starting):
        call(server, "encode", ["a"], timeout_s=0.5, connect={"retry": RetryPolicy()})


def test_all_attempts_of_a_call_share_its_deadline(call: Call, server: FakeServer) -> None:
    with _refused_once(server, grpc.StatusCode.RESOURCE_EXHAUSTED, _retry_info(300)):
        call(server, "encode", ["a"], timeout_s=1, connect=RETRY_FAST)
    assert server.remaining_s <= 0.8


def test_the_last_failure_is_raised_when_no_attempt_is_left(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "draining")
    with pytest.raises(Unavailable, match="draining"):
        call(server, "encode", ["a"], connect=RETRY_FAST)
    assert len(server.requests) == 3


def test_a_client_does_not_wait_beyond_its_deadline_for_an_overloaded_server(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(40_000))
    with pytest.raises(Overloaded) as refused:
        call(server, "encode", ["a"], connect=RETRY_FAST)
    assert refused.value.retry_after_s == 40
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("replicas", "code", "details", "timeout_s"),
    # A call waits for replicas that are unavailable until its time is up.
    [(2, grpc.StatusCode.UNAVAILABLE, [], 0.2), (1, grpc.StatusCode.RESOURCE_EXHAUSTED, [_retry_info(1)], 5.0)],
    ids=["unavailable", "overloaded"],
)
async def test_retries_add_at_most_a_fifth_to_the_load_when_all_calls_fail(
    server: FakeServer,
    other: FakeServer,
    replicas: int,
    code: grpc.StatusCode,
    details: list[Message],
    timeout_s: float,
) -> None:
    servers = [server, other][:replicas]
    refused = 0
    addresses = [fake.address for fake in servers]
    async with AsyncClient(addresses, retry=FAST_RETRY, share_requests=False) as client:
        # A call to a replica that is not connected yet could fail before it reaches the replica.
        while not all(fake.requests for fake in servers):
            await client.encode(["a"])
        for fake in servers:
            fake.requests.clear()
            fake.refuse(code, "no", *details)
        for _ in range(10):
            calls = (client.encode(["a"], timeout_s=timeout_s) for _ in range(10))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            refused += sum(isinstance(outcome, Unavailable | Overloaded) for outcome in outcomes)
    assert refused == 100  # No call failed with another error.
    assert 100 <= sum(len(fake.requests) for fake in servers) <= 120


@pytest.mark.parametrize("client_class", [Client, AsyncClient], ids=["sync", "async"])
async def test_health_checks_do_not_use_up_the_retries_of_calls(
    client_class: type[Client] | type[AsyncClient], server: FakeServer
) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting")
    client = client_class(server.address, retry=FAST_RETRY)

    async def result(method: Callable[[], Any]) -> Any:
        return await method() if isinstance(client, AsyncClient) else method()

    for _ in range(20):
        assert not await result(client.is_serving)
    with pytest.raises(Unavailable):
        await result(lambda: client.encode(["a"]))
    assert len(server.requests) == FAST_RETRY.max_attempts
    await result(client.close)


def test_closing_a_client_ends_the_retry_waits_of_other_threads(server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(25_000))
    client = Client(server.address)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.encode, ["a"])
        server.entered.wait()
        client.close()
        assert isinstance(call.exception(), Cancelled)


async def test_closing_a_client_ends_the_retry_waits_of_other_tasks(server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(25_000))
    client = AsyncClient(server.address)
    call = asyncio.create_task(client.encode(["a"]))
    await asyncio.to_thread(server.entered.wait)
    await client.close()
    with pytest.raises(Cancelled):
        await call


@pytest.mark.parametrize(
    ("refusals", "code"),
    [(0, grpc.StatusCode.UNAVAILABLE), (2, grpc.StatusCode.UNAVAILABLE), (1, grpc.StatusCode.CANCELLED)],
)
@pytest.mark.parametrize("client_class", [Client, AsyncClient], ids=["sync", "async"])
async def test_replicas_take_turns_even_if_they_refused_health_checks(
    client_class: type[Client] | type[AsyncClient],
    server: FakeServer,
    other: FakeServer,
    refusals: int,
    code: grpc.StatusCode,
) -> None:
    server.refuse(code, "not now")
    server.refusals_left = refusals
    async with async_encode(client_class, [server.address, other.address]) as encode:
        while not (server.requests and other.requests):
            await encode([[1]])
        before = len(server.requests), len(other.requests)
        for _ in range(6):
            await encode([[1]])
    assert (len(server.requests) - before[0], len(other.requests) - before[1]) == (3, 3)


@pytest.mark.parametrize("bad", ["refusing_address", "silent_address"])
def test_an_unreachable_replica_fails_no_call(
    call: Call, server: FakeServer, bad: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(bad)
    for _ in range(4):
        assert call(_replicas(address, server), "encode", ["a"], timeout_s=10).lengths.tolist() == [3]
    assert len(server.requests) == 4


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_call_is_unavailable_if_no_replica_can_be_reached(call: Call, refusing_address: str, replicas: int) -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        call(_replicas(*[refusing_address] * replicas), "encode", ["a"], connect=RETRY_FAST)


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "list of one"])
def test_a_server_that_never_answered_is_unavailable_within_two_seconds(
    call: Call, refusing_address: str, in_a_list: bool
) -> None:
    address = SimpleNamespace(address=[refusing_address] if in_a_list else refusing_address)
    started_s = time.monotonic()
    with pytest.raises(Unavailable):
        call(address, "encode", ["a"], connect={"retry": RetryPolicy()})
    assert time.monotonic() - started_s < 2


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "list of one"])
def test_a_call_waits_for_a_first_answer_until_its_deadline(call: Call, silent_address: str, in_a_list: bool) -> None:
    address = SimpleNamespace(address=[silent_address] if in_a_list else silent_address)
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s") as late:
        call(address, "encode", ["a"], timeout_s=0.2, request_id="r")
    assert late.value.request_id == "r"


@pytest.mark.parametrize("client_class", [Client, AsyncClient], ids=["sync", "async"])
async def test_a_call_without_retries_fails_at_once_while_the_server_is_down(
    client_class: type[Client] | type[AsyncClient], server: FakeServer
) -> None:
    async with async_encode(client_class, [server.address], retry=RetryPolicy(max_attempts=1)) as encode:
        await encode([[1]])
        server.stop()
        started_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await encode([[1]])
        assert time.monotonic() - started_s < 2


def test_closing_a_client_ends_the_wait_for_a_server_that_is_down(server: FakeServer) -> None:
    client = Client(server.address)
    client.encode(["a"])
    server.stop()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(client.encode, ["a"]), pool.submit(client.encode, TEXTS)]
        time.sleep(0.3)
        client.close()
        assert [type(call.exception(5)) for call in calls] == [Cancelled] * 2


async def test_closing_an_async_client_ends_the_wait_for_a_server_that_is_down(server: FakeServer) -> None:
    client = AsyncClient(server.address)
    await client.encode(["a"])
    server.stop()
    call = asyncio.create_task(client.encode(["a"]))
    await asyncio.sleep(0.3)
    await client.close()
    with pytest.raises(Cancelled):
        await asyncio.wait_for(call, 5)


def test_closing_a_stream_ends_its_wait_for_a_server_that_is_down(server: FakeServer) -> None:
    with Client(server.address) as client:
        results = client.encode_stream(TEXTS)
        next(results)
        server.stop()
        time.sleep(0.3)
        started_s = time.monotonic()
        results.close()
        assert time.monotonic() - started_s < 0.5


def test_closing_a_client_ends_the_wait_for_a_first_replica(silent_address: str) -> None:
    client = Client([silent_address])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.encode, ["a"])
        client.close()
        assert isinstance(call.exception(), Cancelled)


async def test_closing_an_async_client_ends_the_wait_for_a_first_replica(silent_address: str) -> None:
    client = AsyncClient([silent_address])
    call = asyncio.create_task(client.encode(["a"]))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(Cancelled):
        await call


@pytest.mark.parametrize("client_class", [Client, AsyncClient], ids=["sync", "async"])
async def test_a_call_leaves_a_replica_that_answers_neither_the_call_nor_a_health_check(
    client_class: type[Client] | type[AsyncClient], server: FakeServer, other: FakeServer
) -> None:
    async with async_encode(client_class, [server.address, other.address], timeout_s=2) as encode:
        while not (server.requests and other.requests):
            await encode([[1]])
        server.released.clear()
        for _ in range(2):
            assert (await encode([[1]])).lengths.tolist() == [1]
        server.released.set()


async def test_an_async_client_that_is_closed_sends_no_health_check(server: FakeServer) -> None:
    transport = AsyncGrpcTransport(Connection([server.address]), FAST_RETRY)
    await transport.close()
    transport._start_probes()  # As an answer that arrives while the client is being closed may do.
    assert not transport._health_checks


def test_cancelling_a_scope_cancels_a_call_to_a_replica(server: FakeServer) -> None:
    scope = CancelScope()
    transport = GrpcTransport(Connection([server.address, server.address]), FAST_RETRY)
    transport.unary(METHODS["ListModels"], b"", 10)
    server.released.clear()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(transport.unary, METHODS["ListModels"], b"", 10, None, scope)
        while len(server.requests) < 2:
            time.sleep(0.01)
        scope.cancel()
        assert isinstance(call.exception(5), Cancelled)
    assert server.cancelled.wait(5)
    transport.close()


@pytest.mark.parametrize("method", ["models", "is_serving"])
def test_every_call_sends_the_metadata(call: Call, server: FakeServer, method: str) -> None:
    call(server, method, connect={"metadata": {"x-tenant": "a b"}, "token": "s3cret"})
    assert server.metadata["x-tenant"] == "a b"
    assert server.metadata["authorization"] == "Bearer s3cret"
