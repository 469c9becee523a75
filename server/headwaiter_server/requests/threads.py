"""Threads for work that would stop the event loop: tokenising texts, decoding images, and writing large replies."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from headwaiter_server.scheduling.fair_start import Priority

# At least two, so that bulk work leaves one thread to interactive work.
THREADS = min(8, max(2, os.cpu_count() or 1))

# Read the large messages of callers. asyncio's own threads are left to the server's own work: otherwise callers could
# delay the counts by which the engine sees that a front end is alive, or new tokens.
LARGE_MESSAGES = ThreadPoolExecutor(THREADS, thread_name_prefix="large-messages")

_Result = TypeVar("_Result")
# Work in steps: it yields after each step, and returns its result.
Steps = Generator[None, None, _Result]


class PriorityThreads:
    """Runs functions in threads: interactive work before bulk work, which never takes the last thread.

    Holders (see `Call.holder`) take turns, so that much work of one holder delays the others by one step per thread.
    The work of one holder runs first in, first out.

    Use an instance in one event loop. If a task is cancelled, its function does not start; a running function goes on.
    """

    def __init__(self, name: str, threads: int = THREADS) -> None:
        """Create the pool of at least 2 threads with a name; threads start when functions need them."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = {each: threads if each is Priority.INTERACTIVE else threads - 1 for each in Priority}
        self._running = dict.fromkeys(Priority, 0)
        # A permit for each function that waits, by holder. The first holder comes next.
        self._waiting: dict[Priority, dict[str, deque[asyncio.Future[None]]]] = {each: {} for each in Priority}

    async def run_steps(self, steps: Steps[_Result], priority: Priority, holder: str) -> _Result:
        """Return the result of work in steps; other work may run between two steps.

        Raises:
            BaseException: the error of the work.
        """
        ended: list[_Result] = []
        begun = False
        while not ended:
            await self.run(partial(_advance, steps, ended), priority, holder, continues=begun)
            begun = True
        return ended[0]

    async def run(
        self, function: Callable[[], _Result], priority: Priority, holder: str, *, continues: bool = False
    ) -> _Result:
        """Return the result of a function; one that continues work comes before other work of its holder.

        Raises:
            BaseException: the error of the function; a panic of Rust code is no Exception.
        """
        if self._has_thread(priority):
            self._running[priority] += 1
        else:
            await self._wait_for_thread(priority, holder, continues=continues)
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

    async def _wait_for_thread(self, priority: Priority, holder: str, *, continues: bool) -> None:
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        permits = self._waiting[priority].setdefault(holder, deque())
        permits.insert(0 if continues else len(permits), permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.done() and not permit.cancelled():
                self._end(priority)
            raise

    def _end(self, priority: Priority) -> None:
        self._running[priority] -= 1
        self._start_next()

    def _start_next(self) -> None:
        for priority in Priority:
            waiting = self._waiting[priority]
            while waiting and self._has_thread(priority):
                holder = next(iter(waiting))
                permits = waiting.pop(holder)
                permit = permits.popleft()
                if permits:
                    waiting[holder] = permits
                if not permit.done():
                    # Keep the thread for the waiting task, which runs only in the next iteration of the event loop.
                    self._running[priority] += 1
                    permit.set_result(None)


def finish(steps: Steps[_Result]) -> _Result:
    """Return the result of work in steps, which all run now."""
    ended: list[_Result] = []
    while not ended:
        _advance(steps, ended)
    return ended[0]


def _advance(steps: Steps[_Result], ended: list[_Result]) -> None:
    """Do one step; append the result of the work to `ended` if the step was the last."""
    try:
        next(steps)
    except StopIteration as end:
        ended.append(end.value)
