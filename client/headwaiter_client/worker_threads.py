"""The threads of a `Client`: few, shared by all its calls, and no obstacle to the end of the program."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

_Result = TypeVar("_Result")

# Threads of a client, unless `max_in_flight` is larger. Callers with long lists share them.
MIN_THREADS = 32
# A thread that had nothing to do for this long ends, so that an unused client holds no threads.
_IDLE_S = 1.0


class Work(Future[_Result], Generic[_Result]):
    """A function that a thread runs in the caller's context, and the future of its result."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        super().__init__()
        self._function: Callable[[], _Result] | None = partial(copy_context().run, function)

    def run(self) -> None:
        """Run the function in this thread, unless the work was cancelled."""
        function, self._function = self._function, None
        if function is None or not self.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 The caller who waits for the result gets every error.
            self.set_exception(error)
        else:
            self.set_result(result)


class WorkerThreads:
    """Runs work in a limited number of threads.

    The threads of `ThreadPoolExecutor` are joined when the program ends, so a program could not end while a request is
    in flight. These threads are daemons.

    Args:
        limit: maximum number of threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()
        _all_workers.add(self)

    def submit(self, function: Callable[[], _Result]) -> Work[_Result]:
        """Run a function in a thread, as soon as one is free."""
        work = Work(function)
        with self._changed:
            self._queue.append(work)
            if self._idle < len(self._queue) and self._threads < self._limit:
                with suppress(RuntimeError):  # The system, or Python at the end of a program, allows no more threads.
                    threading.Thread(target=self._work, name="headwaiter", daemon=True).start()
                    self._threads += 1
                    self._idle += 1
            self._changed.notify()
        return work

    def take(self, work: Work[Any]) -> bool:
        """Return whether the caller must run this work, because no thread is free for it."""
        with self._changed:
            if work not in self._queue or self._queue.index(work) < self._idle:
                return False
            self._queue.remove(work)
            return True

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Work[Any]] = deque()
        # A thread that starts has nothing to do yet.
        self._threads = self._idle = 0

    def _work(self) -> None:
        while work := self._next():
            work.run()
            del work  # Hold no result while the thread is idle.
            with self._changed:
                self._idle += 1

    def _next(self) -> Work[Any] | None:
        """Wait for work; None ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue, _IDLE_S)
            self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads -= 1
            return None


_all_workers: WeakSet[WorkerThreads] = WeakSet()


def _reset_all() -> None:
    for workers in _all_workers:
        workers._reset()  # noqa: SLF001


# A child process has none of its parent's threads. The hook runs before the child can start threads that would reset
# the same object at the same time.
with suppress(AttributeError):  # Windows has no fork.
    os.register_at_fork(after_in_child=_reset_all)
