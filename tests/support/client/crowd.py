"""Makes calls of one client that wait together, so that they share a request."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from headwaiter_client import AsyncClient, Client, FakeEncoder
from headwaiter_client.calls.shared_requests import REQUESTS_PER_SERVER

_TIMEOUT_S = 30.0
HOLDER = "holder"


class HeldEncoder:
    """A transport that holds the requests of `HOLDER` until it is opened, and gives all others to a fake server."""

    def __init__(self, fake: FakeEncoder) -> None:
        self.fake = fake
        self.opened = threading.Event()
        self.held = 0

    def holds(self, count: int) -> bool:
        """Return whether it holds so many requests."""
        return self.held >= count

    def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        if HOLDER.encode() in request:
            self.held += 1
            assert self.opened.wait(_TIMEOUT_S)
        return self.fake.unary(method, request, *others)

    def close(self) -> None:
        self.fake.close()


class AsyncHeldEncoder:
    """`HeldEncoder` for asyncio."""

    def __init__(self, held: HeldEncoder) -> None:
        self._held = held

    async def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        if HOLDER.encode() in request:
            self._held.held += 1
            assert await asyncio.to_thread(self._held.opened.wait, _TIMEOUT_S)
        return self._held.fake.unary(method, request, *others)

    async def close(self) -> None:
        self._held.close()


def outcomes_together(
    client_class: type[Client | AsyncClient],
    fake: FakeEncoder,
    calls: Sequence[Callable[[Any], Any]],
    *,
    until_done: bool = False,
) -> list[Any]:
    """Return the result or the error of each call; all calls wait together until four requests before them end.

    With `until_done`, the four requests end after the calls.
    """
    held = HeldEncoder(fake)
    if client_class is AsyncClient:
        return asyncio.run(_together_async(held, calls, until_done=until_done))
    return _together(held, calls, until_done=until_done)


def _together(held: HeldEncoder, calls: Sequence[Callable[[Any], Any]], *, until_done: bool) -> list[Any]:
    with ExitStack() as stack:
        client = stack.enter_context(Client(transport=held))
        threads = stack.enter_context(ThreadPoolExecutor(len(calls) + REQUESTS_PER_SERVER))
        stack.callback(held.opened.set)
        for index in range(REQUESTS_PER_SERVER):
            threads.submit(client.encode, HOLDER)
            _wait_until(partial(held.holds, index + 1))
        futures = [threads.submit(call, client) for call in calls]
        _wait_until(lambda: _settled(client, futures, until_done) == len(calls))
        held.opened.set()
        return [future.exception(_TIMEOUT_S) or future.result() for future in futures]


async def _together_async(held: HeldEncoder, calls: Sequence[Callable[[Any], Any]], *, until_done: bool) -> list[Any]:
    async with AsyncClient(transport=AsyncHeldEncoder(held)) as client:
        holders = []
        for index in range(REQUESTS_PER_SERVER):
            holders.append(asyncio.create_task(client.encode(HOLDER)))
            await _wait_until_async(partial(held.holds, index + 1))
        tasks = [asyncio.create_task(call(client)) for call in calls]
        await _wait_until_async(lambda: _settled(client, tasks, until_done) == len(calls))
        held.opened.set()
        await asyncio.gather(*holders)
        return await asyncio.gather(*tasks, return_exceptions=True)


def _settled(client: Client | AsyncClient, calls: Sequence[Any], until_done: bool) -> int:
    """Return the number of calls that wait for a shared request, unless `until_done`, or have ended."""
    sharing = client._sharing
    assert sharing is not None
    waiting = 0 if until_done else sum(map(len, sharing._requests._waiting.values()))
    return waiting + sum(bool(call.done()) for call in calls)


def _wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


async def _wait_until_async(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0)
