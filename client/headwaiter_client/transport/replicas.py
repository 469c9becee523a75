"""Which of several replicas takes the next call: no I/O, no randomness of its own."""


class Replicas:
    """Replicas that are up take turns.

    Args:
        count: how many there are.
        first: which one has the first turn, from 0.
    """

    def __init__(self, count: int, first: int) -> None:
        self._up: list[bool | None] = [None] * count
        self._turn = first

    @property
    def known(self) -> bool:
        """Whether calls may start: one replica is up, or all have been looked at."""
        return any(self._up) or None not in self._up

    def mark(self, index: int, *, up: bool) -> bool:
        """Notes that a replica is up or down; tells whether that is new."""
        new = self._up[index] is not up
        self._up[index] = up
        return new

    def next(self) -> int:
        """Returns the next replica that is up; where none is, the next one, which may have come back just now."""
        order = [(self._turn + step) % len(self._up) for step in range(len(self._up))]
        chosen = next((index for index in order if self._up[index]), order[0])
        self._turn = chosen + 1
        return chosen
