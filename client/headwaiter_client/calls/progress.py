"""Reports of the progress of a list."""

import sys
import time
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TypeAlias

from headwaiter_client.calls.arguments import check_type

# A function that is called with the number of finished sequences and the number of all; True shows a line instead.
Progress: TypeAlias = Callable[[int, int], None] | bool

_BETWEEN_LINES_S = 0.1


def progress_function(progress: object) -> Callable[[int, int], None] | None:
    """Return the function that reports the progress of a call; None if the call has none.

    Raises:
        TypeError: `progress` is neither a plain function nor a bool nor None.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return _ProgressLine()
    check_type("progress", progress, Callable, "True, or a function of two numbers, done and total")  # type: ignore[arg-type]
    if iscoroutinefunction(progress):
        raise TypeError("progress is a coroutine function, which the client never awaits: pass a plain function")
    function: Callable[[int, int], None] = progress  # type: ignore[assignment]
    return function


class _ProgressLine:
    """Writes progress to one line of standard error, at most ten times a second."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._written_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done < total and now_s < self._written_s + _BETWEEN_LINES_S:
            return
        self._written_s = now_s
        per_s = done / max(now_s - self._started_s, 1e-9)
        # The cursor waits at the start of the line, so that other output replaces the line instead of extending it.
        end = "\n" if done == total else "\r"
        print(f"{done:,} of {total:,} ({done / total:.0%}), {per_s:,.0f} per s", end=end, file=sys.stderr, flush=True)
