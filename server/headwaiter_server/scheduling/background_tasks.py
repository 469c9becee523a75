"""Tasks beside the scheduler's loop."""

import asyncio
from collections.abc import Callable, Coroutine


class BackgroundTasks:
    """Runs tasks beside a loop, which is woken when a task ends.

    Args:
        on_end: called when a task ends.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        # The event loop holds only weak references to tasks.
        self._running: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        for note_end in (self._running.discard, self._ended.append, lambda _: self._on_end()):
            task.add_done_callback(note_end)

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
