"""Choose the next batch: a pure function of the waiting sequences, the cost model and the batch limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.pending import Pending, earliest
from headwaiter_server.scheduling.queued_request import Batch, Sequence

# Time before a deadline that a plan leaves free: to write and send the answer, and for small errors of predictions.
REPLY_S = 0.01
# A batch is chosen among the oldest sequences that fill this number of token budgets. A choice among all waiting
# sequences lowers padding by little more, and passes over sequences of unusual length, which raises the p99 latency.
BUDGETS_TO_CHOOSE_FROM = 1.5
_length_tokens = attrgetter("length_tokens")
# The cost of a sequence that must not join a batch.
_NEVER = float("inf")


class CloseReason(StrEnum):
    """Why a batch is not larger."""

    BUDGET = "budget"  # the next sequence would exceed the token budget
    # The next sequence would exceed another limit, or its padding would take longer than starting another batch.
    CELLS = "cells"
    URGENT = "urgent"  # the next sequence would let a sequence of the batch miss its deadline
    DRAINED = "drained"  # no other sequence was waiting, or the leader runs alone


@dataclass(eq=False, slots=True)
class Plan:
    """The next batch.

    Attributes:
        batch: the sequences to run together, the leader first; empty if no sequence can run.
        expired: sequences to drop, because they cannot be answered in time.
        seconds: predicted duration of the batch.
    """

    batch: Batch
    expired: Batch
    seconds: float
    close_reason: CloseReason


def plan(pending: Pending, start_s: float, cost: CostModel, limits: BatchLimits, *, idle: bool = False) -> Plan:
    """Choose a leader, and fill its batch with those of the oldest sequences that cost least per token.

    The leader is the sequence with the earliest fair start, of the tenant whose turn it is. Of each priority, the next
    sequences in turn may join: those that fill `BUDGETS_TO_CHOOSE_FROM` token budgets. Of the next shorter and the next
    longer one, the one that adds less time per token joins first. Bulk sequences join after all interactive sequences.
    A suspect, which may kill the device, runs alone. Another sequence joins only if

    - the batch stays within its limits; a batch of one sequence may exceed them,
    - the padding of the batch, and its copies of hidden rows that no sequence needs, take no longer than the launch of
      another batch (otherwise two batches are faster than one), and
    - no sequence of the batch misses its deadline.

    Args:
        pending: the waiting sequences; `plan` does not remove them.
        start_s: when the batch will start, on the clock of the deadlines.
        cost: predicts the seconds of a batch.
        limits: the batch limits; a batch of one sequence may exceed them.
        idle: whether the device is idle. An idle device runs even a sequence that is predicted to miss its deadline,
            because only a batch that runs can correct the predictions.
    """
    expired: list[Sequence] = []

    def in_time(sequence: Sequence) -> bool:
        length, needed_s = sequence.length_tokens, 0.0
        if not idle and sequence.deadline_s < float("inf"):
            needed_s = cost.seconds(1, length, length, length * length, sequence.hidden) + REPLY_S
        if sequence.deadline_s > start_s + needed_s:
            return True
        expired.append(sequence)
        return False

    oldest = [_oldest(filter(in_time, sequences), limits.tokens) for sequences in pending.in_turn()]
    leader = earliest([sequences[0] for sequences in oldest if sequences])
    if leader is None:
        return Plan((), tuple(expired), 0.0, CloseReason.DRAINED)
    batch = _GrowingBatch(leader, start_s + REPLY_S, cost, limits)
    for sequences in () if leader.is_suspect else oldest:
        for hidden in (leader.hidden, not leader.hidden):
            alike = [each for each in sequences if each.hidden == hidden and each is not leader and not each.is_suspect]
            shorter = [each for each in alike if each.length_tokens < leader.length_tokens]
            longer = [each for each in alike if each.length_tokens >= leader.length_tokens]
            shorter.sort(key=_length_tokens, reverse=True)
            longer.sort(key=_length_tokens)
            batch.fill(iter(shorter), iter(longer))
    return Plan(tuple(batch.sequences), tuple(expired), batch.seconds, batch.close_reason)


def _oldest(sequences: Iterator[Sequence], budget_tokens: int) -> list[Sequence]:
    """Return the first sequences that fill `BUDGETS_TO_CHOOSE_FROM` budgets; a longer sequence counts as one budget."""
    oldest: list[Sequence] = []
    tokens = 0
    for sequence in sequences:
        oldest.append(sequence)
        tokens += min(sequence.length_tokens, budget_tokens)
        if tokens >= BUDGETS_TO_CHOOSE_FROM * budget_tokens:
            break
    return oldest


class _GrowingBatch:
    """A batch that sequences may join.

    Attributes:
        sequences: the sequences that have joined, the leader first.
        close_reason: why the latest candidate did not join.
        seconds: predicted duration of the batch.
    """

    def __init__(self, leader: Sequence, start_s: float, cost: CostModel, limits: BatchLimits) -> None:
        self.sequences = [leader]
        self.close_reason = CloseReason.DRAINED
        self._cost, self._limits, self._start_s = cost, limits, start_s
        self._tokens = self._longest = leader.length_tokens
        self._needed_cells = leader.length_tokens**2
        self._hidden_tokens = self._tokens if leader.hidden else 0
        self._deadline_s = leader.deadline_s
        self.seconds = cost.seconds(1, self._tokens, self._longest, self._needed_cells, leader.hidden)

    def fill(self, shorter: Iterator[Sequence], longer: Iterator[Sequence]) -> None:
        """Let sequences join, each time the cheaper of the next shorter and the next longer one."""
        sides = [shorter, longer]
        nearest = [next(shorter, None), next(longer, None)]
        token_s = [self._extra_s_per_token(candidate) for candidate in nearest]
        while True:
            side = 0 if token_s[0] <= token_s[1] else 1
            joining = nearest[side]
            if joining is None or token_s[side] == _NEVER:
                return
            self._join(joining, token_s[side])
            nearest[side] = next(sides[side], None)
            token_s = [self._extra_s_per_token(candidate) for candidate in nearest]

    def _extra_s_per_token(self, candidate: Sequence | None) -> float:
        """Return the seconds that a candidate would add, per token of the candidate; infinity if it must not join."""
        if candidate is None:
            return _NEVER
        length = candidate.length_tokens
        sequence_count, tokens = len(self.sequences) + 1, self._tokens + length
        longest = length if length > self._longest else self._longest
        needed_cells = self._needed_cells + length * length
        if tokens > self._limits.tokens:
            self.close_reason = CloseReason.BUDGET
            return _NEVER
        cost = self._cost
        wasted_s = cost.padding_s(sequence_count, tokens, longest, needed_cells)
        hidden_tokens = self._hidden_tokens + length if candidate.hidden else self._hidden_tokens
        if hidden_tokens:
            wasted_s += cost.hidden_row_s * (tokens - hidden_tokens)
        limits = self._limits
        padded_length = limits.padded_length(longest)
        padded_tokens = sequence_count * padded_length
        too_large = padded_tokens > limits.padded_tokens or padded_tokens * padded_length > limits.cells
        other_length = limits.one_length and length != self._longest
        if wasted_s > cost.launch_s or too_large or other_length or sequence_count > limits.sequences:
            self.close_reason = CloseReason.CELLS
            return _NEVER
        seconds = cost.seconds(sequence_count, tokens, longest, needed_cells, hidden_tokens > 0)
        if self._start_s + seconds > min(self._deadline_s, candidate.deadline_s):
            self.close_reason = CloseReason.URGENT
            return _NEVER
        return (seconds - self.seconds) / length

    def _join(self, sequence: Sequence, token_s: float) -> None:
        length = sequence.length_tokens
        self.sequences.append(sequence)
        self._tokens += length
        self._needed_cells += length * length
        self._longest = max(self._longest, length)
        self._hidden_tokens += length if sequence.hidden else 0
        self._deadline_s = min(self._deadline_s, sequence.deadline_s)
        self.seconds += token_s * length
