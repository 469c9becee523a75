"""Both clients behind one interface with `await`, for tests that keep a client open."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from contextvars import copy_context
from functools import partial
from typing import Any

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, SequenceEncoding
from headwaiter_client.transport.interface import Transport

# More than the calls of any test.
_THREADS = 300


@asynccontextmanager
async def open_client(
    client_class: type[Client] | type[AsyncClient], server: "str | list[str] | FakeEncoder | InThreads", **options: Any
) -> AsyncIterator[Any]:
    """Yield an `AsyncClient`, or a `Client` with the methods of an `AsyncClient`, which make the calls in threads.

    Args:
        client_class: the class of the client.
        server: the address or the transport of the client.
        **options: other arguments of the client.
    """
    target: Any = server
    if client_class is AsyncClient:
        if isinstance(server, FakeEncoder):
            target = AsyncFakeEncoder(server)
        async with AsyncClient(**_arguments(target), **options) as client:
            yield client
    else:
        if isinstance(server, InThreads):
            target = server.transport
        with Client(**_arguments(target), **options) as blocking:
            yield _ThreadedClient(blocking)


def _arguments(target: Any) -> dict[str, Any]:
    return {"address" if isinstance(target, str | list) else "transport": target}


class _ThreadedClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(_THREADS)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return partial(self._start, attribute) if callable(attribute) else attribute

    def _start(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        """Start a call with the context variables of the caller."""
        call = partial(copy_context().run, method, *arguments, **options)
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def encode_stream(self, sequences: Any, **options: Any) -> AsyncIterator[SequenceEncoding]:
        if isinstance(sequences, AsyncIterable):
            sequences = _blocking(aiter(sequences), asyncio.get_running_loop())
        with closing(self._client.encode_stream(sequences, **options)) as results:
            while (one := await self._start(next, results, None)) is not None:
                yield one


def _blocking(source: AsyncIterator[Any], loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """Yield what an asynchronous source yields, in another thread than that of the event loop."""

    async def take() -> Any:
        return await anext(source)

    while True:
        try:
            yield asyncio.run_coroutine_threadsafe(take(), loop).result()
        except StopAsyncIteration:
            return


class InThreads:
    """A transport that may block; an `AsyncClient` waits for its replies in threads.

    Attributes:
        transport: the transport, which a `Client` uses as it is.
        cancelled: ids of the requests of an `AsyncClient` that were cancelled.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.cancelled: list[str] = []
        self._threads = ThreadPoolExecutor(_THREADS)

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        call = partial(self.transport.unary, method, request, timeout_s, request_id)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except asyncio.CancelledError:
            self.cancelled.append(request_id or "")
            raise

    async def close(self) -> None:
        self.transport.close()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most 30 s."""
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.001)
