"""A server in the test's own event loop, and a device that a test can pause.

`testbed.server_process` starts a server as a process of its own instead.
"""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headwaiter_client import AsyncClient, RetryPolicy
from headwaiter_server import front_end
from headwaiter_server.app import Server
from headwaiter_server.models import calibration
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.processes.front_end_process import FrontEndProcess
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.settings.flags import Settings
from testbed.server_process import FRONT_ENDS
from tests.support.e2e.http_calls import post_json
from tests.support.known_costs import known_cost


def local_settings(bundle: Path | None, **changes: Any) -> Settings:
    """Return settings of a CPU server on free local ports."""
    front_ends = int(os.environ.get(FRONT_ENDS, "0"))
    defaults = {"provider": "cpu", "address": "127.0.0.1:0", "metrics_port": 0, "front_ends": front_ends}
    return Settings(**{"bundle": bundle, **defaults, **changes})


@asynccontextmanager
async def serving(bundle: Path | None, **changes: Any) -> AsyncIterator[Server]:
    """Start a server, and drain the server when the block ends; its front ends run in the test's event loop, too."""
    server = Server(local_settings(bundle, **changes))
    with in_this_process():
        await server.start()
        try:
            yield server
        finally:
            await server.drain()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Run the front ends of servers that start in the block in the test's event loop; shorten starts and drains.

    The servers start with a made-up cost of batches, and drain without a pause for late calls.
    """
    with (
        patch.object(front_end_supervisor, "spawn_process", _FrontEndInLoop.start),
        patch.object(calibration, "measure_cost", known_cost),
        patch.object(front_end, "_QUIET_S", 0.0),
    ):
        yield


class _FrontEndInLoop:
    """Stands in for the process of a front end: a task that has the same sockets."""

    def __init__(self, engine: socket.socket, http_sockets: Sequence[socket.socket], number: int) -> None:
        self._task = asyncio.create_task(FrontEndProcess(http_sockets, f"front end {number}").serve(engine))

    @classmethod
    async def start(
        cls, engine: socket.socket, http_sockets: Sequence[socket.socket], number: int, _: object
    ) -> "_FrontEndInLoop":
        """Start the task."""
        return cls(engine.dup(), [each.dup() for each in http_sockets], number)

    async def wait(self) -> int:
        """Wait for the end of the task."""
        await asyncio.wait({self._task})
        return 0

    def kill(self) -> None:
        """End the task once its sockets are closed."""


def one_front_end() -> int:
    """Return 1, or 0 without front ends: for limits of connections, of which each front end has its share."""
    return min(1, int(os.environ[FRONT_ENDS]))


def connect(server: Server) -> AsyncClient:
    """Return a client that sends each call as one request, once, so that a test sees what the server does with it."""
    return AsyncClient(f"127.0.0.1:{server.port}", retry=RetryPolicy(max_attempts=1), share_requests=False)


def metrics_url(server: Server) -> str:
    """Return the address of a server's metrics page."""
    return f"http://127.0.0.1:{server.metrics_port}/metrics"


async def post(server: Server, path: str, **fields: Any) -> Any:
    """Post fields as JSON to a path of a server, and return the content of the reply."""
    return await asyncio.to_thread(post_json, metrics_url(server).replace("/metrics", path), fields)


class PausedDevice:
    """Stops each batch between the scheduler and the graph until the test resumes the device.

    Attributes:
        batch_lengths: sequence lengths of each batch that the scheduler has started, in order.
    """

    def __init__(self) -> None:
        self.batch_lengths: list[list[int]] = []
        self._resumed = threading.Event()
        self._batch_started = threading.Event()

    async def wait_for_batch(self) -> None:
        """Wait until the scheduler has started a batch."""
        assert await asyncio.to_thread(self._batch_started.wait, 10)

    def resume(self) -> None:
        """Let all batches run, the stopped one and later ones."""
        self._resumed.set()

    def pause(self) -> None:
        """Stop all later batches."""
        self._resumed.clear()
        self._batch_started.clear()

    def stop(self, batch: PackedBatch) -> None:
        """Block the device's thread until the test resumes the device."""
        self.batch_lengths.append(batch.lengths.tolist())
        self._batch_started.set()
        assert self._resumed.wait(10)


@contextmanager
def paused_device() -> Iterator[PausedDevice]:
    """Stop every batch that starts from now on, until the test resumes the device or the block ends."""
    device = PausedDevice()
    run = EncoderGraph.run

    def stop_then_run(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        device.stop(batch)
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", stop_then_run):
        try:
            yield device
        finally:
            device.resume()


async def wait_until(client: AsyncClient, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; a call to the server between two checks lets the server work.

    The condition runs in a thread, because the event loop may run the front end that the condition asks for metrics.
    """
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(condition):
            await client.is_serving()
