"""The waiting sequences, indexed by length and by fair start."""

from collections.abc import Callable, Iterator
from itertools import chain

from sortedcontainers import SortedDict

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.queued_request import Sequence

# Tokens are counted per interval of fair starts of this length.
_STEP_S = 0.1


class Pending:
    """A set of waiting sequences.

    Adding or removing a sequence takes logarithmic time. Counting tokens takes time proportional to the number of 0.1 s
    steps between the fair start and the nearer end of the queue: few for a request that arrives now.

    Attributes:
        on_change: called when a sequence was added or removed.
        tokens: number of tokens of all waiting sequences.
        hidden_tokens: number of tokens of the waiting sequences whose hidden rows are needed.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.tokens = self.hidden_tokens = 0
        self._by_fair_start = _Index()
        self._by_length = {(priority, hidden): _Index() for priority in Priority for hidden in (False, True)}
        self._count = 0
        self._steps = {priority: _TokensBySteps() for priority in Priority}

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        """Return whether the sequence is waiting."""
        return self._by_length[sequence.priority, sequence.hidden].contains(sequence.length_tokens, sequence)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self._count += 1
        self._by_length[sequence.priority, sequence.hidden].add(sequence.length_tokens, sequence)
        self._by_fair_start.add(sequence.fair_start_s, sequence)
        self._add_tokens(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence.

        Raises:
            KeyError: the sequence is not waiting.
        """
        self._by_length[sequence.priority, sequence.hidden].remove(sequence.length_tokens, sequence)
        self._count -= 1
        self._by_fair_start.remove(sequence.fair_start_s, sequence)
        self._add_tokens(sequence, -sequence.length_tokens)

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence if it is waiting."""
        if sequence in self:
            self.remove(sequence)

    def by_fair_start(self) -> Iterator[Sequence]:
        """Yield the sequences in the order of their fair starts."""
        return iter(self._by_fair_start)

    def shorter(self, leader: Sequence, priority: Priority, *, hidden: bool) -> Iterator[Sequence]:
        """Yield sequences of a priority, with or without hidden rows, shorter than the leader, the longest first."""
        return self._by_length[priority, hidden].below(leader.length_tokens)

    def longer(self, leader: Sequence, priority: Priority, *, hidden: bool) -> Iterator[Sequence]:
        """Yield the other sequences of a priority, with or without hidden rows, the shortest first."""
        at_least_as_long = self._by_length[priority, hidden].at_least(leader.length_tokens)
        return (sequence for sequence in at_least_as_long if sequence is not leader)

    @property
    def mean_tokens(self) -> int:
        """Mean length of the waiting sequences, rounded down; 1 if no sequence is waiting."""
        # A scrape of the metrics reads both numbers in another thread, while they change, so either may be 0.
        return max(1, self.tokens // max(1, len(self)))

    def tokens_before(self, fair_start_s: float) -> int:
        """Return the number of tokens that start before a fair start, or in the same 0.1 s step."""
        if fair_start_s == float("inf"):
            return self.tokens
        return sum([steps.tokens_before(fair_start_s) for steps in self._steps.values() if steps.tokens])

    def _add_tokens(self, sequence: Sequence, tokens: int) -> None:
        """Add tokens to the totals of a sequence; a negative number subtracts tokens."""
        self.tokens += tokens
        self.hidden_tokens += tokens if sequence.hidden else 0
        self._steps[sequence.priority].add(sequence.fair_start_s, tokens)
        self.on_change()


class _TokensBySteps:
    """The tokens of sequences of one priority, by the 0.1 s step of the fair start.

    The fair start of a request that arrives now is near the end of its own priority, which is the shorter way to count.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._by_step = SortedDict()

    def add(self, fair_start_s: float, tokens: int) -> None:
        """Add tokens to the step of a fair start; a negative number subtracts tokens."""
        self.tokens += tokens
        step = fair_start_s // _STEP_S
        step_tokens = self._by_step.get(step, 0) + tokens
        if step_tokens:
            self._by_step[step] = step_tokens
        else:
            del self._by_step[step]

    def tokens_before(self, fair_start_s: float) -> int:
        """Return the number of tokens that start before a fair start, or in the same step."""
        by_step = self._by_step
        before = by_step.bisect_right(fair_start_s // _STEP_S)
        after = len(by_step) - before
        if after < before:
            return self.tokens - sum(by_step.values()[before:]) if after else self.tokens
        return sum(by_step.values()[:before])


class _Index:
    """Sequences sorted by a key; sequences of the same key keep the order in which they were added."""

    def __init__(self) -> None:
        # A dict keeps the order of insertion, and removes any sequence in constant time.
        self._by_key = SortedDict()

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the sequences, the smallest key first."""
        return chain.from_iterable(self._by_key.values())

    def add(self, key: float, sequence: Sequence) -> None:
        """Add a sequence under a key."""
        same_key = self._by_key.get(key)
        if same_key is None:
            same_key = self._by_key[key] = {}
        same_key[sequence] = None

    def contains(self, key: float, sequence: Sequence) -> bool:
        """Return whether a sequence is there under a key."""
        return sequence in self._by_key.get(key, ())

    def remove(self, key: float, sequence: Sequence) -> None:
        """Remove a sequence from a key."""
        same_key = self._by_key[key]
        del same_key[sequence]
        if not same_key:
            del self._by_key[key]

    def below(self, key: float) -> Iterator[Sequence]:
        """Yield the sequences of smaller keys, the largest key first."""
        keys = self._by_key.irange(maximum=key, inclusive=(True, False), reverse=True)
        return chain.from_iterable(self._by_key[key] for key in keys)

    def at_least(self, key: float) -> Iterator[Sequence]:
        """Yield the sequences of a key and of larger keys, the smallest key first."""
        return chain.from_iterable(self._by_key[key] for key in self._by_key.irange(minimum=key))
