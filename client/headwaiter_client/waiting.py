"""Wait so that Ctrl-C, or the cancellation of the task, always ends the wait."""

import asyncio
import concurrent.futures
import threading
import time
from typing import TypeVar

_Result = TypeVar("_Result")

# No thread waits for longer than this at a time. Ctrl-C just before the main thread begins to wait does not wake the
# thread: Python looks for signals before the wait, and the system wakes only a thread that waits already.
MAX_WAIT_S = 0.1


def wait_for_event(event: threading.Event, timeout_s: float) -> None:
    """Wait until an event is set, at most for `timeout_s` seconds."""
    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0 and not event.wait(min(left_s, MAX_WAIT_S)):
        pass


def wait_for_result(future: concurrent.futures.Future[_Result]) -> _Result:
    """Wait for the result of a future, and return the result."""
    while not future.done():
        concurrent.futures.wait([future], MAX_WAIT_S)
    return future.result()


async def wait_for_async_event(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until an event is set, at most for `timeout_s` seconds.

    `asyncio.wait_for` of Python 3.11 drops a cancellation that comes while the event is set.
    """
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting], timeout=timeout_s)
    finally:
        waiting.cancel()
