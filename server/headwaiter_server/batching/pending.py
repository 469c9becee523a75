"""The sequences that wait, indexed by length and by urgency."""

from collections.abc import Iterator
from itertools import chain

from sortedcontainers import SortedDict, SortedKeyList

from headwaiter_server.batching.job import Priority, Sequence

# How finely `tokens_due_by` tells times apart.
_DUE_STEP_S = 0.02


class Pending:
    """A set of waiting sequences; every operation takes logarithmic time.

    Attributes:
        tokens: of all of them together.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._by_urgency = SortedKeyList(key=_urgency)
        self._by_length = {priority: _ByLength() for priority in Priority}
        # Tokens by when they are due, in steps.
        self._due_tokens = SortedDict()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._by_urgency)

    def __contains__(self, sequence: Sequence) -> bool:
        """Tell whether a sequence waits."""
        return sequence in self._by_length[sequence.priority]

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        self._by_urgency.add(sequence)
        self._by_length[sequence.priority].add(sequence)
        self._count(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            ValueError: it does not wait.
        """
        self._by_urgency.remove(sequence)
        self._by_length[sequence.priority].remove(sequence)
        self._count(sequence, -sequence.length_tokens)

    def by_urgency(self) -> Iterator[Sequence]:
        """Yield the sequences, the most urgent first."""
        return iter(self._by_urgency)

    def shorter(self, than: Sequence, priority: Priority) -> Iterator[Sequence]:
        """Yield a priority's sequences that are shorter than a sequence, the longest first."""
        return self._by_length[priority].shorter(than.length_tokens)

    def longer(self, than: Sequence, priority: Priority) -> Iterator[Sequence]:
        """Yield a priority's other sequences that are as long as a sequence or longer, the shortest first."""
        return (each for each in self._by_length[priority].longer(than.length_tokens) if each is not than)

    def tokens_due_by(self, time_s: float) -> int:
        """Return how many tokens are due by then, to within a step of 20 ms."""
        return sum(self._due_tokens[step] for step in self._due_tokens.irange(maximum=time_s // _DUE_STEP_S))

    def _count(self, sequence: Sequence, tokens: int) -> None:
        self.tokens += tokens
        step = sequence.due_s // _DUE_STEP_S
        left = self._due_tokens.get(step, 0) + tokens
        if left:
            self._due_tokens[step] = left
        else:
            del self._due_tokens[step]


class _ByLength:
    """Sequences of each length in the order they came, and the lengths in order."""

    def __init__(self) -> None:
        # A dict keeps the order in which its keys came, and lets go of any of them at once.
        self._buckets: SortedDict = SortedDict()

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._buckets.get(sequence.length_tokens, ())

    def add(self, sequence: Sequence) -> None:
        self._buckets.setdefault(sequence.length_tokens, {})[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        bucket = self._buckets[sequence.length_tokens]
        del bucket[sequence]
        if not bucket:
            del self._buckets[sequence.length_tokens]

    def shorter(self, length: int) -> Iterator[Sequence]:
        lengths = self._buckets.irange(maximum=length, inclusive=(True, False), reverse=True)
        return chain.from_iterable(self._buckets[each] for each in lengths)

    def longer(self, length: int) -> Iterator[Sequence]:
        return chain.from_iterable(self._buckets[each] for each in self._buckets.irange(minimum=length))


def _urgency(sequence: Sequence) -> tuple[float, int]:
    return sequence.due_s, sequence.order
