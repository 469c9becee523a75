"""Chooses the next batch: a pure function of what waits, what it costs and what fits."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.job import Priority, Sequence
from headwaiter_server.scheduling.pending import Pending


class Closed(StrEnum):
    """Why no further sequence joined a batch."""

    BUDGET = "budget"  # of tokens
    CELLS = "cells"  # of attention or pooling, or their padding would cost more than a launch
    URGENT = "urgent"  # a larger batch would be too late for one of its sequences
    DRAINED = "drained"  # nothing else waits


@dataclass(eq=False, slots=True)
class Plan:
    """What to do next.

    Attributes:
        batch: the sequences to run together, the one that leads it first; empty when none waits.
        expired: sequences that can have no answer in time, to be dropped.
        seconds: what the batch should take.
        closed: why it is not larger.
    """

    batch: tuple[Sequence, ...]
    expired: tuple[Sequence, ...]
    seconds: float
    closed: Closed


def plan(
    pending: Pending, now_s: float, cost: CostModel, limits: BatchLimits, margin_s: float = 0.0, devices: int = 1
) -> Plan:
    """Choose a batch that starts from the sequence whose turn it is and adds what costs least beside it.

    Turns are by arrival and size; but where a full batch more could make somebody late, the most urgent sequence leads.
    A neighbour in length joins, the cheaper a token of the next shorter and the next longer first, and bulk work after
    all interactive. It joins as long as the batch's padding costs no more than the launch of another batch (so no way
    of running the same sequences in several batches is faster), and nobody in the batch misses its deadline by it. The
    batch exceeds a limit only when its one sequence does.

    Args:
        pending: what waits; it is not changed.
        now_s: when the batch will start, on the clock of the deadlines.
        cost: the seconds a batch takes.
        limits: how large it may be.
        margin_s: how much earlier than a deadline an answer has to be expected.
        devices: how many share the work.
    """
    expired: list[Sequence] = []

    def in_time(sequences: Iterator[Sequence]) -> Iterator[Sequence]:
        for each in sequences:
            length = each.length_tokens
            if each.deadline_s > now_s + margin_s + cost.seconds(1, length, length, length * length):
                yield each
            else:
                expired.append(each)

    turns = _time_for_turns(pending, now_s + margin_s, cost, limits, devices)
    seed = next(in_time(pending.by_turn() if turns else pending.by_due()), None)
    if seed is None:
        return Plan((), tuple(expired), 0.0, Closed.DRAINED)
    batch = _Batch(seed, now_s + margin_s, cost, limits)
    for priority in Priority:
        batch.fill(in_time(pending.shorter(seed, priority)), in_time(pending.longer(seed, priority)))
    return Plan(tuple(batch.members), tuple(dict.fromkeys(expired)), batch.seconds, batch.closed)


def _time_for_turns(pending: Pending, now_s: float, cost: CostModel, limits: BatchLimits, devices: int) -> bool:
    """Tell whether all that waits can be in time behind another full batch, if the most urgent go first then."""
    budget = limits.tokens
    batch_s = cost.in_full_batches_s(budget, pending.mean_tokens, budget)
    return pending.all_in_time(now_s + batch_s, batch_s / budget / devices)


class _Batch:
    """A batch in the making, of B sequences, T tokens, N in the longest, and Σ n² attention cells that are needed."""

    def __init__(self, seed: Sequence, now_s: float, cost: CostModel, limits: BatchLimits) -> None:
        self.members = [seed]
        self.closed = Closed.DRAINED
        self._cost, self._limits, self._now_s = cost, limits, now_s
        self._tokens = self._longest = seed.length_tokens
        self._squares = seed.length_tokens**2
        self._deadline_s = seed.deadline_s
        self.seconds = cost.seconds(1, self._tokens, self._longest, self._squares)

    def fill(self, shorter: Iterator[Sequence], longer: Iterator[Sequence]) -> None:
        """Let sequences join from both sides of a length, the cheaper first, until neither side's next one may."""
        sides = [shorter, longer]
        nearest = [next(shorter, None), next(longer, None)]
        extra = [self._extra_s(candidate) for candidate in nearest]
        while True:
            side = 0 if extra[0] <= extra[1] else 1
            joining = nearest[side]
            if joining is None or extra[side] == _NEVER:
                return
            self._join(joining, extra[side])
            nearest[side] = next(sides[side], None)
            extra = [self._extra_s(candidate) for candidate in nearest]

    def _extra_s(self, candidate: Sequence | None) -> float:
        """Return the seconds a token that a candidate would add, infinity where it must not join."""
        if candidate is None:
            return _NEVER
        length = candidate.length_tokens
        sequences, tokens = len(self.members) + 1, self._tokens + length
        longest = length if length > self._longest else self._longest
        squares = self._squares + length * length
        if tokens > self._limits.tokens:
            self.closed = Closed.BUDGET
            return _NEVER
        cost = self._cost
        too_padded = cost.padding_s(sequences, tokens, longest, squares) > cost.launch_s
        padded_tokens = sequences * longest
        too_large = padded_tokens > self._limits.padded_tokens or padded_tokens * longest > self._limits.cells
        if too_padded or too_large:
            self.closed = Closed.CELLS
            return _NEVER
        seconds = cost.seconds(sequences, tokens, longest, squares)
        if self._now_s + seconds > min(self._deadline_s, candidate.deadline_s):
            self.closed = Closed.URGENT
            return _NEVER
        return (seconds - self.seconds) / length

    def _join(self, sequence: Sequence, token_s: float) -> None:
        length = sequence.length_tokens
        self.members.append(sequence)
        self._tokens += length
        self._squares += length * length
        self._longest = max(self._longest, length)
        self._deadline_s = min(self._deadline_s, sequence.deadline_s)
        self.seconds += token_s * length


_NEVER = float("inf")
