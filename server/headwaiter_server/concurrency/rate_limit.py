"""Limit how many events of each kind, or how many of their bytes, are let through in a second."""

from collections.abc import Callable
from dataclasses import dataclass

_WINDOW_S = 1.0


@dataclass(slots=True)
class _Window:
    """The current second of a kind of event."""

    end_s: float
    let_through: int = 0
    left_out: int = 0


class RateLimit:
    """Lets through the first events of each kind in a second, and counts the others.

    A second starts with its first event. Callers must not be able to invent kinds, because each kind takes memory.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str, per_s: int, amount: int = 1) -> bool:
        """Return whether to let an event through.

        Args:
            kind: the kind of event.
            per_s: the most that the events of the kind may amount to in a second.
            amount: what this event amounts to.
        """
        now_s = self._clock()
        window = self._windows.get(kind)
        if window is None or now_s >= window.end_s:
            window = self._windows[kind] = _Window(now_s + _WINDOW_S, left_out=window.left_out if window else 0)
        if window.let_through + amount <= per_s:
            window.let_through += amount
            return True
        window.left_out += 1
        return False

    @property
    def has_left_out(self) -> bool:
        """Whether events were left out that `take_left_out` has not reported."""
        return any(window.left_out for window in self._windows.values())

    def take_left_out(self, *, all_kinds: bool = False) -> dict[str, int]:
        """Return how many events of each kind were left out in a second that is over, and forget these seconds.

        Args:
            all_kinds: also take the seconds that are not over.
        """
        now_s = self._clock()
        over = [kind for kind, window in self._windows.items() if all_kinds or now_s >= window.end_s]
        numbers = {kind: self._windows.pop(kind).left_out for kind in over}
        return {kind: left_out for kind, left_out in numbers.items() if left_out}
