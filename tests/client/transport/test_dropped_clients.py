"""A client that is dropped without `close` is freed with its threads, tasks and sockets, even if a replica is down."""

import asyncio
import gc
import threading
import time
import weakref
from inspect import isawaitable
from typing import Any

import psutil
import pytest

from headwaiter_client import AsyncClient
from tests.support.client.fake_server import FakeServer

CLIENTS = 5


@pytest.fixture
def addresses(server: FakeServer) -> list[str]:
    """A replica that answers, and one that has gone down."""
    gone = FakeServer()
    gone.stop()
    return [server.address, gone.address]


def _held() -> tuple[int, int, int]:
    """Return the numbers of sockets, of gRPC's threads and of tasks."""
    # The server's end of each connection is a socket of this process too.
    sockets = len(psutil.Process().net_connections())
    return sockets, sum("channel_spin" in each.name for each in threading.enumerate()), len(asyncio.all_tasks())


async def test_a_dropped_client_is_freed(client_class: Any, addresses: list[str]) -> None:
    async with AsyncClient(addresses) as client:  # Starts gRPC's threads for asyncio, which stay.
        await client.encode(["a"])
    before = _held()
    dropped = []
    for _ in range(CLIENTS):
        client = client_class(addresses)
        for _ in range(2):
            encoding: Any = client.encode(["a"])
            if isawaitable(encoding):
                await encoding
        dropped.append(weakref.ref(client._transport))
        del client, encoding
    gc.collect()
    assert [transport() for transport in dropped] == [None] * CLIENTS
    until_s = time.monotonic() + 5  # A probe that has been sent ends within 2 s.
    while any(now > earlier for now, earlier in zip(_held(), before, strict=True)):
        assert time.monotonic() < until_s, (_held(), before)
        await asyncio.sleep(0.05)
