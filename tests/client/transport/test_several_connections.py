"""A client with several calls in flight opens several connections to a server with front ends."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwaiter_client import AsyncClient, Client
from tests.client.fake_server import FakeServer

_ROUNDS = 30


def call_together(server: FakeServer, calls: int) -> None:
    """Make so many calls at once, again and again."""
    with Client(server.address) as client, ThreadPoolExecutor(calls) as threads:
        for _ in range(_ROUNDS):
            list(threads.map(lambda _: client.encode(["a"]), range(calls)))


def call_together_async(server: FakeServer, calls: int) -> None:
    """Make so many calls at once, again and again."""

    async def run() -> None:
        async with AsyncClient(server.address) as client:
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
