"""Threads for work that would stop the event loop: tokenising texts, decoding images, and writing large replies."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.scheduling.fair_start import Priority

# At least two, so that bulk work leaves one thread to interactive work.
THREADS = min(8, max(2, os.cpu_count() or 1))
_RETRY_AFTER_S = 1.0

_Result = TypeVar("_Result")


class PriorityThreads:
    """Runs functions in threads: interactive work before bulk work, which never takes the last thread.

    Use an instance in one event loop. If a task is cancelled, its function does not start; a running function goes on.
    """

    def __init__(self, name: str, threads: int = THREADS, max_waiting_bytes: float = float("inf")) -> None:
        """Create the pool; threads start when functions need them.

        Args:
            name: names the threads.
            threads: number of threads; at least 2.
            max_waiting_bytes: maximum bytes of waiting work of each priority; one function alone may exceed it.
        """
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = {Priority.INTERACTIVE: threads, Priority.BULK: threads - 1}
        self._running = dict.fromkeys(Priority, 0)
        self._waiting: dict[Priority, deque[asyncio.Future[None]]] = {priority: deque() for priority in Priority}
        self._waiting_bytes = dict.fromkeys(Priority, 0)
        self._max_waiting_bytes = max_waiting_bytes

    async def run(self, function: Callable[[], _Result], priority: Priority, size_bytes: int = 0) -> _Result:
        """Return the result of a function.

        Raises:
            Overloaded: too many bytes of work wait.
            BaseException: the error of the function; a panic of Rust code is no Exception.
        """
        if self._has_thread(priority):
            self._running[priority] += 1
        else:
            await self._wait_for_thread(priority, size_bytes)
        loop = asyncio.get_running_loop()

        def note_end(_: "Future[_Result]") -> None:
            with suppress(RuntimeError):  # The event loop is closed.
                loop.call_soon_threadsafe(self._end, priority)

        work = self._executor.submit(function)
        # Watch the thread's own future, because a cancellation ends asyncio's future before the thread is free.
        work.add_done_callback(note_end)
        return await asyncio.wrap_future(work)

    def _has_thread(self, priority: Priority) -> bool:
        free = sum(self._running.values()) < self._most[Priority.INTERACTIVE]
        return free and self._running[priority] < self._most[priority]

    async def _wait_for_thread(self, priority: Priority, size_bytes: int) -> None:
        waiting_bytes = self._waiting_bytes[priority]
        if waiting_bytes and waiting_bytes + size_bytes > self._max_waiting_bytes:
            raise Overloaded(
                f"{waiting_bytes} bytes of requests wait for a thread that reads them; the server lets at most "
                f"{self._max_waiting_bytes} bytes wait: try again in {_RETRY_AFTER_S:g} s",
                retry_after_s=_RETRY_AFTER_S,
                limit=int(self._max_waiting_bytes),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(turn)
        self._waiting_bytes[priority] += size_bytes
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(priority)
            raise
        finally:
            self._waiting_bytes[priority] -= size_bytes

    def _end(self, priority: Priority) -> None:
        self._running[priority] -= 1
        self._start_next()

    def _start_next(self) -> None:
        for priority in (Priority.INTERACTIVE, Priority.BULK):
            waiting = self._waiting[priority]
            while waiting and self._has_thread(priority):
                turn = waiting.popleft()
                if not turn.done():
                    # Keep the thread for the waiting task, which runs only in the next turn of the event loop.
                    self._running[priority] += 1
                    turn.set_result(None)
