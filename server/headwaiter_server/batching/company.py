"""Whether to keep a device for a moment, for requests that are likely to come."""

# More would save little more, and keep a device from working while others are received.
_SEQUENCES = 4
_TURNS = 8
# What else runs on the core can make a turn long.
_MOMENT_S = 0.003


class Company:
    """Keeps a device for callers who come together.

    Callers who were answered together come again together, but not at one moment: where each found the device idle, it
    would run alone. So, where the last batch served several requests, a device is kept until a few sequences wait, or
    the event loop has turned some times, or a few milliseconds have passed, since the last request came.
    """

    def __init__(self) -> None:
        self._expected = False
        self._came_s = float("-inf")
        self._turns = 0

    def served(self, *, together: bool) -> None:
        """Note whether the batch that a device was given is of several requests."""
        self._expected = together

    def came(self, now_s: float) -> None:
        """Note that a request has come."""
        self._came_s, self._turns = now_s, 0

    def may_come(self, waiting_sequences: int, now_s: float) -> bool:
        """Tell whether to keep the device for another turn of the event loop, and count it."""
        if not self._expected or waiting_sequences >= _SEQUENCES or now_s - self._came_s > _MOMENT_S:
            return False
        self._turns += 1
        return self._turns <= _TURNS
