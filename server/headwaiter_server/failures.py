"""What is wrong with single sequences of a request."""

from headwaiter_server.errors import HeadwaiterError


class Failures:
    """Errors of single sequences: the first is raised, unless the others shall be answered all the same.

    Attributes:
        by_sequence: the errors that were kept, by the index of their sequence.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.by_sequence: dict[int, HeadwaiterError] = {}

    def add(self, error: HeadwaiterError) -> None:
        """Note what is wrong with a sequence; of several things, the first.

        Raises:
            HeadwaiterError: the error itself, unless errors are kept.
        """
        assert error.sequence is not None
        if not self.keep:
            raise error
        self.by_sequence.setdefault(error.sequence, error)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.by_sequence
