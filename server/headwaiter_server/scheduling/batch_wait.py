"""Whether to keep a device for a moment, for requests that are likely to come."""

# More would save little more, and the device would stand idle while they are received.
_SEQUENCES = 6
# Of the event loop, since the last request came.
_TURNS = 8


class Company:
    """Keeps a device for callers who come together.

    Callers who were answered together come again together, but not at one moment: where each found the device idle, it
    would run alone. So, where the last batch served several requests, a device is kept until a few sequences wait, or
    until it has been kept for some turns of the event loop without another request.
    """

    def __init__(self) -> None:
        self._expected = False
        self._turns = 0

    def served(self, *, together: bool) -> None:
        """Note whether the batch that a device was given is of several requests."""
        self._expected = together

    def came(self) -> None:
        """Note that a request has come."""
        self._turns = 0

    def keep_another_turn(self, waiting_sequences: int) -> bool:
        """Tell whether to keep the device for another turn of the event loop, and count it."""
        self._turns += 1
        return self._expected and waiting_sequences < _SEQUENCES and self._turns <= _TURNS
