"""Notice what takes too long, among many things of which nearly all are quick."""

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Stragglers(Generic[Item]):
    """Calls back for each item that was added and not discarded for `limit_s`; cheaper than a timer for each item.

    Use an instance in one event loop.
    """

    def __init__(self, limit_s: float, on_late: Callable[[Item], None]) -> None:
        self._limit_s, self._on_late = limit_s, on_late
        # When each item was added, the oldest first.
        self._added_s: dict[Item, float] = {}
        self._watching = False

    def add(self, item: Item) -> None:
        """Watch an item."""
        loop = asyncio.get_running_loop()
        self._added_s[item] = loop.time()
        if not self._watching:
            self._watching = True
            loop.call_later(self._limit_s, self._look)

    def discard(self, item: Item) -> None:
        """Watch an item no more."""
        self._added_s.pop(item, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = loop.time() - self._limit_s
        for item in list(takewhile(lambda item: self._added_s[item] <= late_s, self._added_s)):
            del self._added_s[item]
            self._on_late(item)
        self._watching = bool(self._added_s)
        if self._watching:
            loop.call_at(next(iter(self._added_s.values())) + self._limit_s, self._look)
