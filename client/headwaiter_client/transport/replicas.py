"""Choose the replica for the next call, without I/O and without randomness."""


class Replicas:
    """Replicas that take calls in turn; those that are down are skipped.

    Args:
        count: number of replicas.
        first: index of the replica for the first call.
    """

    def __init__(self, count: int, first: int) -> None:
        self._up: list[bool | None] = [None] * count  # None: not checked yet.
        self._next = first

    @property
    def ready(self) -> bool:
        """Whether calls may start: one replica is up, or all have been checked."""
        return any(self._up) or None not in self._up

    def record(self, index: int, up: bool) -> bool:
        """Record whether a replica is up, and return whether the recorded state changed."""
        changed = self._up[index] is not up
        self._up[index] = up
        return changed

    def next(self) -> int:
        """Return the index of the next replica that is up. If all are down, return the next one: it may be up again."""
        order = [(self._next + step) % len(self._up) for step in range(len(self._up))]
        index = next((index for index in order if self._up[index]), order[0])
        self._next = index + 1
        return index
