"""Decide when a thread has run a task for so long that it hangs; without a clock and without threads."""

from collections import deque

# Generous, because a machine may be many times slower than when the batches were timed, and because a thread that is
# given up never comes back.
_SHORTEST_LIMIT_S = 30.0
_LIMIT_PER_PREDICTED = 20.0
# The most seconds that count between two checks: a process that was suspended ran neither its tasks nor its checks.
_LONGEST_STEP_S = 5.0


def run_limit_s(predicted_s: float) -> float:
    """Return the seconds after which a run hangs, given its predicted seconds."""
    return max(_SHORTEST_LIMIT_S, _LIMIT_PER_PREDICTED * predicted_s)


class Watchdog:
    """Adds up the seconds that a thread has spent on its current task.

    Times are on a clock that the caller reads. Two checks should be less than 5 s apart.
    """

    def __init__(self) -> None:
        # The limits of the tasks that have not ended, the running task first.
        self._limits_s: deque[float] = deque()
        self._spent_s = self._checked_s = 0.0

    def add(self, limit_s: float, now_s: float) -> None:
        """Add a task that the thread runs after its earlier tasks."""
        if not self._limits_s:
            self._restart(now_s)
        self._limits_s.append(limit_s)

    def end(self, now_s: float) -> None:
        """Note that the running task has ended, and that the next one has started."""
        self._limits_s.popleft()
        self._restart(now_s)

    def hangs(self, now_s: float) -> bool:
        """Return whether the running task has taken longer than its limit."""
        self._spent_s += min(now_s - self._checked_s, _LONGEST_STEP_S)
        self._checked_s = now_s
        return bool(self._limits_s) and self._spent_s > self._limits_s[0]

    def _restart(self, now_s: float) -> None:
        self._spent_s, self._checked_s = 0.0, now_s
