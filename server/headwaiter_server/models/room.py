"""Decide which models leave memory for another one. Pure functions."""

from collections.abc import Collection
from dataclasses import dataclass

from headwaiter_server.runtime.errors import NoRoom


@dataclass(frozen=True)
class Resident:
    """A version of a model that holds memory.

    Attributes:
        name: name of the model.
        size_bytes: the memory that the version needs.
        used_s: when a request used the version last; infinity while one does.
        loaded_s: when the load ended.
        load_s: seconds that the load took.
        pinned: whether the version is never unloaded for another one.
        leaving: whether the version is being unloaded already.
    """

    name: str
    size_bytes: int
    used_s: float
    loaded_s: float
    load_s: float
    pinned: bool = False
    leaving: bool = False

    @property
    def stays_until_s(self) -> float:
        """Time until which the version stays: at least as long as its load took."""
        return self.loaded_s + self.load_s

    def is_quiet(self, now_s: float) -> bool:
        """Return whether the version may leave, and no request has used it for as long as its load took."""
        return max(self.stays_until_s, self.used_s + self.load_s) <= now_s


@dataclass(frozen=True)
class Room:
    """What makes room for a load.

    Attributes:
        evict: the models to unload now, the least recently used first.
        wait_s: seconds until the next decision; 0 if there is room, infinity if only memory that becomes free helps.
    """

    evict: tuple[str, ...] = ()
    wait_s: float = 0.0


def make_room(needed_bytes: int, limit_bytes: int, residents: Collection[Resident], now_s: float) -> Room:
    """Return what makes room for a model of `needed_bytes`, if all models together may have `limit_bytes`.

    The least recently used models leave. While one of them must stay, others leave that no request has used for as long
    as their load took; if there are too few of them, the load waits. A model that has just answered its first requests
    would otherwise drive out the models that callers use most.

    Raises:
        NoRoom: the model would not fit even if all models that may leave had left.
    """
    pinned_bytes = sum(each.size_bytes for each in residents if each.pinned and not each.leaving)
    if needed_bytes > limit_bytes - pinned_bytes:
        raise NoRoom(limit_bytes - pinned_bytes, needed_bytes)
    missing_bytes = needed_bytes + sum(each.size_bytes for each in residents) - limit_bytes
    if missing_bytes <= 0:
        return Room()
    missing_bytes -= sum(each.size_bytes for each in residents if each.leaving)
    movable = [each for each in residents if not each.pinned and not each.leaving]
    victims: list[Resident] = []
    for each in sorted(movable, key=lambda each: (not each.is_quiet(now_s), each.used_s, each.loaded_s)):
        if missing_bytes <= 0:
            break
        victims.append(each)
        missing_bytes -= each.size_bytes
    stays_until_s = max((each.stays_until_s for each in victims), default=now_s)
    if stays_until_s > now_s:
        return Room(wait_s=stays_until_s - now_s)
    return Room(tuple(each.name for each in victims), float("inf"))
