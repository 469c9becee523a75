"""The waiting sequences of each priority, in the order of their fair starts."""

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

from sortedcontainers import SortedDict

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.queued_request import Sequence

# Tokens are counted per interval of fair starts of this length.
_STEP_S = 0.1
_fair_start_s = attrgetter("fair_start_s")


def earliest(sequences: Iterable[Sequence]) -> Sequence | None:
    """Return the first sequence with the earliest fair start; None if there is no sequence."""
    return min(sequences, key=_fair_start_s, default=None)


class Pending:
    """A set of waiting sequences.

    Adding or removing a sequence takes logarithmic time. Counting tokens takes time proportional to the number of 0.1 s
    steps between the fair start and the nearer end of the queue: few for a request that arrives now.

    Attributes:
        tokens: number of tokens of all waiting sequences.
        hidden_tokens: number of tokens of the waiting sequences whose hidden rows are needed.
    """

    def __init__(self) -> None:
        self.tokens = self.hidden_tokens = 0
        # A dict keeps sequences of the same fair start in order, and removes any of them in constant time.
        self._by_fair_start = {priority: SortedDict() for priority in Priority}
        self._count = 0
        # None if no sequence waits, or if the leader has left since it was looked for.
        self._leader: Sequence | None = None
        self._steps = {priority: _TokensBySteps() for priority in Priority}

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        """Return whether the sequence is waiting."""
        return sequence in self._by_fair_start[sequence.priority].get(sequence.fair_start_s, ())

    def add(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self._count += 1
        leader = self._leader
        if leader is not None and (sequence.fair_start_s, sequence.priority) < (leader.fair_start_s, leader.priority):
            self._leader = sequence
        self._by_fair_start[sequence.priority].setdefault(sequence.fair_start_s, {})[sequence] = None
        self._add_tokens(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence.

        Raises:
            KeyError: the sequence is not waiting.
        """
        by_fair_start = self._by_fair_start[sequence.priority]
        same_start = by_fair_start[sequence.fair_start_s]
        del same_start[sequence]
        if not same_start:
            del by_fair_start[sequence.fair_start_s]
        self._count -= 1
        if sequence is self._leader:
            self._leader = None
        self._add_tokens(sequence, -sequence.length_tokens)

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence if it is waiting."""
        if sequence in self:
            self.remove(sequence)

    def by_fair_start(self) -> list[Iterator[Sequence]]:
        """Return the sequences of each priority that has any, in the order of their fair starts; interactive first."""
        return [chain.from_iterable(starts.values()) for starts in self._by_fair_start.values() if starts]

    @property
    def leader(self) -> Sequence | None:
        """The sequence with the earliest fair start; of an equal pair, the interactive one."""
        if self._leader is None:
            first = [next(iter(starts.peekitem(0)[1])) for starts in self._by_fair_start.values() if starts]
            self._leader = earliest(first)
        return self._leader

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
