"""A client with several calls in flight opens several connections to a server with front ends."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from headwaiter_client import RetryPolicy
from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.failover import HealthCheck
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport, _record
from tests.support.client.both_clients import open_client
from tests.support.client.fake_server import FakeServer


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
async def test_a_client_has_two_connections_for_each_front_end_once_it_has_many_calls_in_flight(
    client_class: Any, server: FakeServer, front_ends: str, calls: int, connections: int
) -> None:
    server.front_ends = front_ends
    async with open_client(client_class, server.address, share_requests=False) as client:
        for _ in range(30):
            await asyncio.gather(*(client.encode(["a"]) for _ in range(calls)))
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
