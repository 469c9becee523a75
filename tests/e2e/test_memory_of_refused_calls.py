"""A call that the server refuses or drops leaves nothing of its message in memory."""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwaiter_server.app import Server
from tests.support.e2e.in_process_server import serving
from tests.support.e2e.large_calls import MESSAGE_BYTES, REQUESTS

# Calls of a request before and while the memory is measured.
_WARM_UP, _MEASURED = 2, 6


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Let nothing free a cycle of objects: each one that a call leaves would keep the call's message."""
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


async def _call(server: Server, request: str, count: int) -> None:
    module = "tests.support.e2e.large_calls"
    arguments = (str(server.port), str(server.http_port), request, str(count))
    caller = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments)
    assert await caller.wait() == 0


@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_refused_request_is_freed_without_the_garbage_collector(text_bundle: Path, request_name: str) -> None:
    async with serving(text_bundle, http_api="on") as server:
        await _call(server, request_name, _WARM_UP)
        before_bytes, _ = tracemalloc.get_traced_memory()
        await _call(server, request_name, _MEASURED)
        after_bytes, _ = tracemalloc.get_traced_memory()
    assert after_bytes - before_bytes < 1.5 * MESSAGE_BYTES
