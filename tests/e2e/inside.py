"""A server in the test's own event loop, and a device that a test can hold."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headwaiter_client import AsyncClient, RetryPolicy
from headwaiter_server.app import Server
from headwaiter_server.config import Settings
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch


def settings(bundle: Path, **changes: Any) -> Settings:
    """Return settings for free ports of this machine, and for the cache of this run."""
    usual = {"provider": "cpu", "address": "127.0.0.1:0", "metrics_port": 0}
    return Settings(**{"bundle": bundle, "cache_dir": Path(os.environ["XDG_CACHE_HOME"]), **usual, **changes})


@asynccontextmanager
async def serving(bundle: Path, **changes: Any) -> AsyncIterator[Server]:
    """Start a server, and drain it in the end."""
    server = Server(settings(bundle, **changes))
    await server.start()
    try:
        yield server
    finally:
        await server.drain()


def connect(server: Server) -> AsyncClient:
    """Return a client of a server; it sends nothing again, so that a test hears of a refusal at once."""
    return AsyncClient(f"127.0.0.1:{server.port}", retry=RetryPolicy(max_attempts=1))


def metrics_url(server: Server) -> str:
    """Return where a server's metrics are."""
    return f"http://127.0.0.1:{server.metrics_port}/metrics"


class HeldDevice:
    """Stands between the scheduler and the graph.

    Attributes:
        lengths: of the sequences of each batch that the scheduler has handed over.
        released: while clear, batches wait.
    """

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []
        self.released = threading.Event()
        self._handed_over = threading.Event()

    async def busy(self) -> None:
        """Return when a batch waits."""
        assert await asyncio.to_thread(self._handed_over.wait, 10)

    def hold(self, batch: PackedBatch) -> None:
        """Keep the device's thread until the test releases it."""
        self.lengths.append(batch.lengths.tolist())
        self._handed_over.set()
        assert self.released.wait(10)


@contextmanager
def held_device() -> Iterator[HeldDevice]:
    """Hold every batch from now on, until it is released or the block ends."""
    device = HeldDevice()
    run = EncoderGraph.run

    def held(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        device.hold(batch)
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", held):
        try:
            yield device
        finally:
            device.released.set()


async def until(client: AsyncClient, happened: Callable[[], bool]) -> None:
    """Return once something has happened in the server, which gets to work between two looks."""
    async with asyncio.timeout(10):
        while not happened():
            await client.is_serving()
