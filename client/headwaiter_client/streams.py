"""Streams of both clients: one thread or task reads the source, others send requests, the caller takes results."""

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.splitting import Chunk, ChunkLimits
from headwaiter_client.calls.steps import LONGEST_SLICE_S
from headwaiter_client.waiting import MAX_WAIT_S, wait_for_async_event
from headwaiter_client.worker_threads import Work, WorkerThreads
from headwaiter_proto.rules.errors import Cancelled, HeadwaiterError

_Part = TypeVar("_Part")


class ThreadStream(Generic[_Part]):
    """Sends the chunks of a source, also while the source pauses.

    Full chunks are sent at once. A chunk that is not full is sent after a short wait, but only while the caller waits
    for the next result: no thread watches the time while the caller does something else.

    The source is read by a thread of its own, because a source that waits must hold up neither the sequences that have
    been read nor the results that have arrived. Nothing can interrupt a source that waits, so the thread is a daemon,
    and ends once the source yields again.

    Args:
        call: the call.
        limits: the limits of its requests.
        send: sends a chunk and returns its result; several threads call it.
        workers: the threads that call `send`.

    Raises:
        HeadwaiterError: the thread of the source cannot be started.
    """

    def __init__(
        self, call: ListCall[Any], limits: ChunkLimits, send: Callable[[Chunk], _Part], workers: WorkerThreads
    ) -> None:
        self._send = send
        self._workers = workers
        self._queue = call.stream_queue(limits, self._start)
        self._changed = threading.Condition()
        self._ended = self._cancelled = False
        self._error: BaseException | None = None
        # The source sees the context variables of the caller.
        read = copy_context().run
        reader = threading.Thread(target=read, args=(self._read, call.sequences), name="headwaiter-source", daemon=True)
        try:
            reader.start()
        except RuntimeError as error:
            raise HeadwaiterError(
                f"the thread that reads the iterable cannot be started ({error}): end other threads, or use encode"
            ) from error

    def next_part(self) -> _Part | None:
        """Wait for the next result; None after the last one.

        Raises:
            Cancelled: the stream was cancelled.
            BaseException: a request, the conversion of a sequence or the source failed. The results of the sequences
                before a failure of the conversion or the source come first.
        """
        with self._changed:
            self._queue.release()
            self._changed.notify_all()
        while True:
            with self._changed:
                if self._cancelled:
                    raise Cancelled("the client was closed before the stream ended")
                self._queue.send_due()
                if done := self._queue.take_done():
                    break
                if self._ended and self._queue.is_empty:
                    error, self._error = self._error, None
                    if error:
                        raise error
                    return None
                waiting = next((work for work in self._queue.candidates if self._workers.take(work)), None)
                if waiting is None:
                    due_s = self._queue.until_due_s()
                    self._changed.wait(MAX_WAIT_S if due_s is None else min(due_s, MAX_WAIT_S))
            if waiting:
                waiting.run()
        return done.result()

    def cancel(self) -> None:
        """Send no more chunks, and wake the caller who waits for a result."""
        with self._changed:
            self._cancelled = True
            for work in self._queue.pending:
                work.cancel()
            self._changed.notify_all()

    def _read(self, source: Iterable[Any]) -> None:
        try:
            for sequence in source:
                with self._changed:
                    if self._add(sequence):
                        return
        except BaseException as error:  # noqa: BLE001 The caller gets every error.
            self._error = error
        finally:
            with self._changed:
                if not self._cancelled:
                    self._queue.finish()
                self._ended = True
                self._changed.notify_all()

    def _add(self, sequence: Any) -> bool:
        """Add a sequence, wait until the next one may be read, and return whether the stream was cancelled."""
        if not self._cancelled:
            self._queue.add(sequence)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._cancelled or self._queue.has_room)
        return self._cancelled

    def _start(self, chunk: Chunk) -> Work[_Part]:
        work = self._workers.submit(lambda: self._send(chunk))
        work.add_done_callback(self._wake)
        return work

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()


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
