"""The sequences that wait, indexed by length, by when they are due and by whose turn it is."""

from collections.abc import Iterator
from itertools import chain

from sortedcontainers import SortedDict, SortedList

from headwaiter_server.scheduling.job import Priority, Sequence

# How finely times are told apart where tokens are counted by when they are due.
_DUE_STEP_S = 0.1


class Pending:
    """A set of waiting sequences; an operation takes logarithmic time, or the number of steps in which they are due.

    Attributes:
        tokens: of all of them together.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._by_due, self._by_turn = _Index(), _Index()
        self._by_length = {priority: _Index() for priority in Priority}
        self._sequences = 0
        # Tokens by when they are due, in steps.
        self._due_tokens = SortedDict()

    def __len__(self) -> int:
        """Return how many wait."""
        return self._sequences

    def __contains__(self, sequence: Sequence) -> bool:
        """Tell whether a sequence waits."""
        return self._by_length[sequence.priority].contains(sequence.length_tokens, sequence)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        self._by_length[sequence.priority].add(sequence.length_tokens, sequence)
        self._by_due.add(sequence.due_s, sequence)
        self._by_turn.add(sequence.turn_s, sequence)
        self._sequences += 1
        self._count(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            KeyError: it does not wait.
        """
        self._by_length[sequence.priority].remove(sequence.length_tokens, sequence)
        self._by_due.remove(sequence.due_s, sequence)
        self._by_turn.remove(sequence.turn_s, sequence)
        self._sequences -= 1
        self._count(sequence, -sequence.length_tokens)

    def by_due(self) -> Iterator[Sequence]:
        """Yield the sequences, the most urgent first."""
        return iter(self._by_due)

    def by_turn(self) -> Iterator[Sequence]:
        """Yield the sequences in the order of their turns."""
        return iter(self._by_turn)

    def shorter(self, than: Sequence, priority: Priority) -> Iterator[Sequence]:
        """Yield a priority's sequences that are shorter than a sequence, the longest first."""
        return self._by_length[priority].below(than.length_tokens)

    def longer(self, than: Sequence, priority: Priority) -> Iterator[Sequence]:
        """Yield a priority's other sequences that are as long as a sequence or longer, the shortest first."""
        return (each for each in self._by_length[priority].at_least(than.length_tokens) if each is not than)

    @property
    def mean_tokens(self) -> int:
        """The mean length of what waits, rounded down; 1 where nothing does."""
        return self.tokens // len(self) if self else 1

    def tokens_due_by(self, time_s: float) -> int:
        """Return how many tokens are due by then, to within a step of 0.1 s."""
        return sum(self._due_tokens[step] for step in self._due_tokens.irange(maximum=time_s // _DUE_STEP_S))

    def all_in_time(self, start_s: float, token_s: float) -> bool:
        """Tell whether all would be in time if they ran from some moment on in the order they are due.

        Args:
            start_s: the moment.
            token_s: seconds a token, when they run.
        """
        tokens = 0
        done_s = start_s + token_s * self.tokens
        for step, due_tokens in self._due_tokens.items():
            tokens += due_tokens
            if step * _DUE_STEP_S < start_s + token_s * tokens:
                return False
            if step * _DUE_STEP_S >= done_s:
                break
        return True

    def _count(self, sequence: Sequence, tokens: int) -> None:
        self.tokens += tokens
        step = sequence.due_s // _DUE_STEP_S
        left = self._due_tokens.get(step, 0) + tokens
        if left:
            self._due_tokens[step] = left
        else:
            del self._due_tokens[step]


class _Index:
    """Sequences by a key, those of the same key in the order they came."""

    def __init__(self) -> None:
        self._keys = SortedList()
        # A dict keeps the order in which its keys came, and lets go of any of them at once.
        self._buckets: dict[float, dict[Sequence, None]] = {}

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the sequences, those of the smallest key first."""
        return chain.from_iterable(self._buckets[key] for key in self._keys)

    def contains(self, key: float, sequence: Sequence) -> bool:
        """Tell whether a sequence is there."""
        return sequence in self._buckets.get(key, ())

    def add(self, key: float, sequence: Sequence) -> None:
        """Take a sequence in."""
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = {sequence: None}
            self._keys.add(key)
        else:
            bucket[sequence] = None

    def remove(self, key: float, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            KeyError: it is not there.
        """
        bucket = self._buckets[key]
        del bucket[sequence]
        if not bucket:
            del self._buckets[key]
            self._keys.remove(key)

    def below(self, key: float) -> Iterator[Sequence]:
        """Yield the sequences of smaller keys, the largest first."""
        keys = self._keys.irange(maximum=key, inclusive=(True, False), reverse=True)
        return chain.from_iterable(self._buckets[each] for each in keys)

    def at_least(self, key: float) -> Iterator[Sequence]:
        """Yield the sequences of a key and of larger ones, the smallest first."""
        return chain.from_iterable(self._buckets[each] for each in self._keys.irange(minimum=key))
