"""A thread that runs functions one after another, and hands each result to the event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Task = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], None], Callable[..., Any], tuple[object, ...]
]


class WorkerThread:
    """Runs functions, first in, first out.

    Each result reaches the event loop in one step. An executor takes several steps: its own future, asyncio's future,
    and the link between the two.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        # A daemon, so that a thread that was never closed does not keep the process alive.
        Thread(target=self._run_tasks, name=name, daemon=True).start()

    def run(
        self, function: Callable[..., _Result], *arguments: object, then: Callable[[], None] = lambda: None
    ) -> "asyncio.Future[_Result]":
        """Run a function in the thread, and call `then` in the event loop once the future has its result or error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        self._tasks.put((loop, future, then, function, arguments))
        return future

    def close(self) -> None:
        """End the thread after the functions that wait."""
        self._tasks.put(None)

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
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
                loop.call_soon_threadsafe(_set_result, future, result, error, then)
            # While the thread waits for its next task, it must not keep the objects of the last task alive.
            del task, loop, future, then, function, arguments, result, error


def _set_result(
    future: "asyncio.Future[Any]", result: object, error: Exception | None, then: Callable[[], None]
) -> None:
    if not future.done():
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)
    then()
