"""A client with several calls in flight opens several connections to a server with front ends."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwaiter_client import AsyncClient, Client, RetryPolicy
from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.failover import HealthCheck
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport, _record
from tests.support.client.fake_server import FakeServer

_ROUNDS = 30


def call_together(server: FakeServer, calls: int) -> None:
    """Make so many calls at once, again and again."""
    with Client(server.address, share_requests=False) as client, ThreadPoolExecutor(calls) as threads:
        for _ in range(_ROUNDS):
            list(threads.map(lambda _: client.encode(["a"]), range(calls)))


def call_together_async(server: FakeServer, calls: int) -> None:
    """Make so many calls at once, again and again."""

    async def run() -> None:
        async with AsyncClient(server.address, share_requests=False) as client:
            for _ in range(_ROUNDS):
                await asyncio.gather(*(client.encode(["a"]) for _ in range(calls)))

    asyncio.run(run())


@pytest.mark.parametrize("call", [call_together, call_together_async])
@pytest.mark.parametrize(
    ("front_ends", "calls", "connections"),
    [
        ("3", 8, 6),
        ("64", 8, 16),
        ("3", 1, 1),
        ("", 8, 1),
        ("1", 8, 2),
        ("many", 8, 1),
        ("-3", 8, 1),
        ("9" * 5000, 8, 1),
    ],
)
def test_a_client_has_two_connections_for_each_front_end_once_it_has_many_calls_in_flight(
    server: FakeServer, call: Callable[[FakeServer, int], None], front_ends: str, calls: int, connections: int
) -> None:
    server.front_ends = front_ends
    call(server, calls)
    assert len(server.connections) == connections


async def test_a_client_that_was_dropped_opens_no_connections(server: FakeServer) -> None:
    server.front_ends = "3"
    transport = AsyncGrpcTransport(Connection(server.address), RetryPolicy())
    await transport.unary(HEALTH_METHOD, HEALTH_REQUEST, 10)
    dropped = weakref.ref(transport)
    call = transport._stub(0, HEALTH_METHOD)(HEALTH_REQUEST)
    await call
    await transport.close()
    del transport
    gc.collect()
    assert dropped() is None
    check = HealthCheck(0, 10, wait_for_ready=False, counts_front_ends=True)
    await _record(dropped, check, call)
    assert server.connections == set()
