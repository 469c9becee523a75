"""Calls that fail are sent again where that is safe, and replicas that are down are left alone, with both clients."""

import asyncio
import socket
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
    Unavailable,
)
from headwaiter_proto import encoder_pb2 as pb
from tests.client.either import encode_with
from tests.client.fake_server import Call, FakeServer

EAGER_RETRY = RetryPolicy(max_attempts=3, initial_backoff_s=0.001, max_backoff_s=0.001)
EAGER = {"retry": EAGER_RETRY}


@pytest.fixture
def other() -> Iterator[FakeServer]:
    """Another replica."""
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def nowhere() -> str:
    """An address that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _at(*servers: FakeServer | str) -> SimpleNamespace:
    """Returns what `call` takes for a server: a list of replicas."""
    return SimpleNamespace(address=[server if isinstance(server, str) else server.address for server in servers])


def _retry_info(milliseconds: int) -> Message:
    delay = Duration()
    delay.FromMilliseconds(milliseconds)
    retry: Message = error_details_pb2.RetryInfo(retry_delay=delay)
    return retry


@contextmanager
def _refused_once(server: FakeServer, code: grpc.StatusCode, *details: Message) -> Iterator[None]:
    """Refuses the next call, and answers those after it."""
    server.refuse(code, "not now", *details)
    server.refusals_left = 1
    yield
    assert server.refusals_left == 0


@pytest.mark.parametrize(
    ("code", "details"),
    [
        pytest.param(grpc.StatusCode.UNAVAILABLE, [], id="unavailable"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, [_retry_info(1)], id="overloaded"),
        pytest.param(grpc.StatusCode.CANCELLED, [], id="cancelled by a server that stops"),
    ],
)
def test_a_call_that_was_refused_for_the_moment_is_sent_again(
    call: Call, server: FakeServer, code: grpc.StatusCode, details: list[Message]
) -> None:
    with _refused_once(server, code, *details):
        result = call(server, "encode_tokens", [[1, 2]], request_id="r", connect=EAGER)
    assert result.lengths.tolist() == [2]
    first, second = server.requests
    assert first == second


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code.name not in ("OK", "UNAVAILABLE", "CANCELLED")]
)
def test_what_another_attempt_would_not_mend_is_sent_once(
    call: Call, server: FakeServer, code: grpc.StatusCode
) -> None:
    server.refuse(code, "no")
    with pytest.raises(HeadwaiterError):
        call(server, "encode", ["a"], connect=EAGER)
    assert sum(isinstance(request, pb.EncodeRequest) for request in server.requests) == 1


def test_attempts_share_the_deadline_of_their_call(call: Call, server: FakeServer) -> None:
    with _refused_once(server, grpc.StatusCode.RESOURCE_EXHAUSTED, _retry_info(300)):
        call(server, "encode", ["a"], timeout_s=1, connect=EAGER)
    assert server.remaining_s <= 0.8


def test_the_last_failure_is_told_when_no_attempt_is_left(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "draining")
    with pytest.raises(Unavailable, match=r"^draining$"):
        call(server, "encode", ["a"], connect=EAGER)
    assert len(server.requests) == 3


def test_who_asks_to_wait_beyond_the_deadline_is_not_waited_for(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(40_000))
    with pytest.raises(Overloaded) as refused:
        call(server, "encode", ["a"], connect=EAGER)
    assert refused.value.retry_after_s == 40
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("code", "details"),
    [(grpc.StatusCode.UNAVAILABLE, []), (grpc.StatusCode.RESOURCE_EXHAUSTED, [_retry_info(1)])],
    ids=["unavailable", "overloaded"],
)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_where_everything_is_refused_clients_add_at_most_a_fifth_to_the_load(
    server: FakeServer, other: FakeServer, code: grpc.StatusCode, details: list[Message], replicas: int
) -> None:
    for refusing in (server, other):
        refusing.refuse(code, "no", *details)
    refused = 0
    async with AsyncClient([server.address, other.address][:replicas], retry=EAGER_RETRY) as client:
        for _ in range(10):
            outcomes = await asyncio.gather(*(client.encode(["a"]) for _ in range(10)), return_exceptions=True)
            refused += sum(isinstance(outcome, Unavailable | Overloaded) for outcome in outcomes)
    assert refused == 100  # Not one failed in another way.
    assert 100 < len(server.requests) + len(other.requests) <= 120


@pytest.mark.parametrize("kind", [Client, AsyncClient], ids=["sync", "async"])
async def test_asking_for_health_leaves_calls_their_retries(
    kind: type[Client] | type[AsyncClient], server: FakeServer
) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting")
    client = kind(server.address, retry=EAGER_RETRY)

    async def result(of: Callable[[], Any]) -> Any:
        return await of() if isinstance(client, AsyncClient) else of()

    for _ in range(20):
        assert not await result(client.is_serving)
    with pytest.raises(Unavailable):
        await result(lambda: client.encode(["a"]))
    assert len(server.requests) == EAGER_RETRY.max_attempts
    await result(client.close)


def test_closing_a_client_ends_the_waits_of_other_threads(server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(25_000))
    client = Client(server.address)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.encode, ["a"])
        server.entered.wait()
        client.close()
        assert isinstance(call.exception(), Cancelled)


async def test_closing_a_client_ends_the_waits_of_other_tasks(server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _retry_info(25_000))
    client = AsyncClient(server.address)
    call = asyncio.create_task(client.encode(["a"]))
    await asyncio.to_thread(server.entered.wait)
    await client.close()
    with pytest.raises(Cancelled):
        await call


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
@pytest.mark.parametrize("refusals", [0, 1, 2])
@pytest.mark.parametrize("kind", [Client, AsyncClient], ids=["sync", "async"])
async def test_replicas_take_turns_even_if_they_refused_to_tell_their_health(
    kind: type[Client] | type[AsyncClient],
    server: FakeServer,
    other: FakeServer,
    refusals: int,
    code: grpc.StatusCode,
) -> None:
    server.refuse(code, "not now")
    server.refusals_left = refusals
    async with encode_with(kind, [server.address, other.address]) as encode:
        while not (server.requests and other.requests):
            await encode([[1]])
        before = len(server.requests), len(other.requests)
        for _ in range(6):
            await encode([[1]])
    assert (len(server.requests) - before[0], len(other.requests) - before[1]) == (3, 3)


@pytest.mark.parametrize("bad", ["nowhere", "silent"])
def test_a_replica_that_cannot_be_reached_costs_no_call(
    call: Call, server: FakeServer, bad: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(bad)
    for _ in range(4):
        assert call(_at(address, server), "encode", ["a"], timeout_s=10).lengths.tolist() == [3]
    assert len(server.requests) == 4


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_no_replica_can_be_reached_the_call_is_unavailable(call: Call, nowhere: str, replicas: int) -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        call(_at(*[nowhere] * replicas), "encode", ["a"], connect=EAGER)


def test_a_call_waits_for_a_first_replica_until_its_deadline(call: Call, silent: str) -> None:
    with pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.2 s$") as late:
        call(_at(silent), "encode", ["a"], timeout_s=0.2, request_id="r")
    assert late.value.request_id == "r"


def test_closing_a_client_ends_the_wait_for_a_first_replica(silent: str) -> None:
    client = Client([silent])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.encode, ["a"])
        client.close()
        assert isinstance(call.exception(), Cancelled)


async def test_closing_an_async_client_ends_the_wait_for_a_first_replica(silent: str) -> None:
    client = AsyncClient([silent])
    call = asyncio.create_task(client.encode(["a"]))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Cancelled):
        await call


@pytest.mark.parametrize("method", ["models", "is_serving"])
def test_metadata_goes_with_every_call(call: Call, server: FakeServer, method: str) -> None:
    call(server, method, connect={"metadata": {"x-tenant": "a b"}, "token": "s3cret"})
    assert server.metadata["x-tenant"] == "a b"
    assert server.metadata["authorization"] == "Bearer s3cret"
