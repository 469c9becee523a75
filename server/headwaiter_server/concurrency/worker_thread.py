"""A thread that runs functions one after another, and hands each result to the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from headwaiter_server.concurrency.watchdog import Watchdog

_Result = TypeVar("_Result")
_Task = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], None], Callable[..., Any], tuple[object, ...]
]


class NeverRan(Exception):
    """A function was not run, because its thread had been given up or closed, or its device had died."""


class WorkerThread:
    """Runs functions, first in, first out.

    Each result reaches the event loop in one step. An executor takes several steps: its own future, asyncio's future,
    and the link between the two.

    Attributes:
        hung: whether the thread was given up; it runs no further function.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.hung = self._closed = False
        self._clock = clock
        self._watchdog = Watchdog()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        # The futures of the functions that have not returned, the running one first.
        self._futures: deque[asyncio.Future[Any]] = deque()
        # A daemon, so that a thread that was never closed does not keep the process alive.
        Thread(target=self._run_tasks, name=name, daemon=True).start()

    def run(
        self,
        function: Callable[..., _Result],
        *arguments: object,
        limit_s: float,
        then: Callable[[], None] = lambda: None,
    ) -> "asyncio.Future[_Result]":
        """Run a function in the thread, and call `then` in the event loop once the future has its result or error.

        Args:
            function: the function.
            *arguments: its arguments.
            limit_s: seconds after which `check` gives up the thread.
            then: the function to call in the event loop.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        if self.hung or self._closed:
            future.set_exception(NeverRan("the device hangs" if self.hung else "the device is closed"))
            return future
        self._watchdog.add(limit_s, self._clock())
        self._futures.append(future)
        self._tasks.put((loop, future, then, function, arguments))
        return future

    def check(self, error: Exception) -> bool:
        """Give up the thread if its function hangs; return whether the thread was given up now.

        The future of the function fails with the error, and all later futures fail with NeverRan.
        """
        if self.hung or not self._watchdog.hangs(self._clock()):
            return False
        self.hung = True
        self.close()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
            error = NeverRan("the device hangs")
        self._futures.clear()
        return True

    def close(self) -> None:
        """End the thread after the functions that wait; no further function runs."""
        self._closed = True
        self._tasks.put(None)

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self.hung:
                continue
            loop, future, then, function, arguments = task
            result = error = None
            try:
                result = function(*arguments)
            except Exception as raised:  # noqa: BLE001 - the error belongs to the future
                error = raised
            except BaseException as raised:  # noqa: BLE001 - a panic of Rust code, for example, must not end the thread
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
                error.__cause__ = raised
            # A closed event loop raises RuntimeError; no task waits for the result any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, future, result, error, then)
            # While the thread waits for its next task, it must not keep the objects of the last task alive.
            del task, loop, future, then, function, arguments, result, error

    def _end(
        self, future: "asyncio.Future[Any]", result: object, error: Exception | None, then: Callable[[], None]
    ) -> None:
        if self.hung:
            return
        self._watchdog.end(self._clock())
        self._futures.popleft()
        if not future.done():
            if error:
                future.set_exception(error)
            else:
                future.set_result(result)
        then()
