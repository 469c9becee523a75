"""A stream of the asyncio client: one task reads the source, others send requests, the caller takes results."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.splitting import Chunk, ChunkLimits
from headwaiter_client.calls.steps import LONGEST_SLICE_S
from headwaiter_client.waiting import wait_for_async_event

_Part = TypeVar("_Part")


class TaskStream(Generic[_Part]):
    """Sends the chunks of a source, also while the source pauses.

    Full chunks are sent at once; a chunk that is not full only while the caller waits for the next result, as in
    `ThreadStream`.

    Args:
        call: the call; a source that is a plain iterable is read in the event loop.
        limits: the limits of its requests.
        send: sends a chunk and returns its result.
    """

    def __init__(
        self, call: ListCall[Any], limits: ChunkLimits, send: Callable[[Chunk], Coroutine[Any, Any, _Part]]
    ) -> None:
        self._send = send
        self._queue = call.stream_queue(limits, self._start)
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._closed = False
        self._reader = asyncio.create_task(self._read(call.sequences))
        self._reader.add_done_callback(self._wake)

    async def next_part(self) -> _Part | None:
        """Wait for the next result, as `ThreadStream.next_part` does; None after the last one."""
        self._queue.release()
        self._has_room.set()
        while True:
            self._changed.clear()
            self._queue.send_due()
            if done := self._queue.take_done():
                return done.result()
            if self._reader.done() and self._queue.is_empty:
                self._reader.result()
                return None
            await wait_for_async_event(self._changed, self._queue.until_due_s())

    async def aclose(self) -> None:
        """Stop reading, and cancel the requests in flight."""
        self._closed = True
        tasks = [self._reader, *self._queue.pending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        try:
            async for sequence in _as_async(source):
                self._queue.add(sequence)
                self._changed.set()
                while not self._queue.has_room:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            # Also after an error: the results of the sequences before the error come first.
            if not self._closed:
                self._queue.finish()

    def _start(self, chunk: Chunk) -> asyncio.Task[_Part]:
        task = asyncio.create_task(self._send(chunk))
        task.add_done_callback(self._wake)
        return task

    def _wake(self, _: object) -> None:
        self._changed.set()


async def _as_async(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the items of a plain or an async iterable; let other tasks run while a plain one is read."""
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
        return
    resumed_s = time.monotonic()
    for item in source:
        yield item
        if time.monotonic() - resumed_s > LONGEST_SLICE_S:
            await asyncio.sleep(0)
            resumed_s = time.monotonic()
