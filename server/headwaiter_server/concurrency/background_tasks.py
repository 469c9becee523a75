"""Run tasks in the background of a loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundTasks:
    """Runs tasks in the background, and tells their owner when a task ends.

    Args:
        on_end: called when a task ends.
        on_error: called in the `except` block for the error of a task; None keeps the error for `raise_errors`.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None, on_error: Callable[[], object] | None = None) -> None:
        self._on_end, self._on_error = on_end, on_error
        # The event loop holds only weak references to tasks.
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: list[asyncio.Task[Any]] = []

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Start a task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if self._on_error is None:
            self._ended.append(task)
        elif not task.cancelled():
            try:
                task.result()
            except Exception:  # noqa: BLE001 - `on_error` handles any error
                self._on_error()
        self._on_end()

    def raise_errors(self) -> None:
        """Raise the error of a task that has ended with an error.

        Raises:
            Exception: the error of the task.
        """
        while self._ended:
            self._ended.pop().result()

    def cancel(self) -> None:
        """Cancel the running tasks."""
        for task in self._running:
            task.cancel()
