"""A client that is dropped without `close` is freed with its threads, tasks and sockets, even if a replica is down."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from headwaiter_client import AsyncClient, Client
from tests.support.client.fake_server import FakeServer

CLIENTS = 5


@pytest.fixture
def addresses(server: FakeServer) -> list[str]:
    """A replica that answers, and one that has gone down."""
    gone = FakeServer()
    gone.stop()
    return [server.address, gone.address]


def _sockets() -> int:
    return len(psutil.Process().net_connections())


def _grpc_threads() -> int:
    return sum("channel_spin" in thread.name for thread in threading.enumerate())


def _is_soon_true(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 5
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.05)
    return condition()


def test_a_dropped_client_is_freed(addresses: list[str]) -> None:
    sockets, threads = _sockets(), _grpc_threads()
    dropped = []
    for _ in range(CLIENTS):
        client = Client(addresses)
        client.encode(["a"])
        client.encode(["a"])
        dropped.append(weakref.ref(client._transport))
        del client
    gc.collect()
    assert [transport() for transport in dropped] == [None] * CLIENTS
    assert _is_soon_true(lambda: _grpc_threads() <= threads)
    # The server's end of each connection is a socket of this process too.
    assert _is_soon_true(lambda: _sockets() <= sockets)


async def test_a_dropped_async_client_is_freed(addresses: list[str]) -> None:
    async with AsyncClient(addresses) as client:  # Starts gRPC's threads for asyncio, which stay.
        await client.encode(["a"])
    tasks = len(asyncio.all_tasks())
    sockets = _sockets()
    dropped: list[weakref.ref[Any]] = []
    for _ in range(CLIENTS):
        client = AsyncClient(addresses)
        await client.encode(["a"])
        await client.encode(["a"])
        dropped.append(weakref.ref(client._transport))
        del client
    gc.collect()
    assert [transport() for transport in dropped] == [None] * CLIENTS
    for _ in range(50):
        await asyncio.sleep(0.1)  # A probe that has been sent ends within 2 s.
        if len(asyncio.all_tasks()) <= tasks and _sockets() <= sockets:
            break
    assert len(asyncio.all_tasks()) <= tasks
    assert _sockets() <= sockets
