"""Chooses the next batch: a pure function of what waits, what it costs and what fits."""

from collections.abc import Iterator
from dataclasses import dataclass

from headwaiter_server.batching.cost import BatchLimits, CostModel
from headwaiter_server.batching.job import Sequence
from headwaiter_server.batching.pending import Pending


@dataclass(frozen=True)
class Plan:
    """What to do next.

    Attributes:
        batch: the sequences to run together, led by the most urgent; empty when none waits.
        expired: sequences whose deadline has passed, to be dropped.
    """

    batch: tuple[Sequence, ...]
    expired: tuple[Sequence, ...]


def plan(pending: Pending, now_s: float, cost: CostModel, limits: BatchLimits) -> Plan:
    """Choose a batch that starts from the most urgent sequence and adds what costs least beside it.

    A neighbour in length joins, the cheaper of the next shorter and the next longer first, as long as the batch's
    padding costs no more than the launch of another batch: so no way of running its sequences in several batches is
    faster. The batch exceeds a limit only when its one sequence does.

    Args:
        pending: what waits; it is not changed.
        now_s: the time, on the clock of the deadlines.
        cost: the seconds a batch takes.
        limits: how large it may be.
    """
    expired: list[Sequence] = []
    seed = next(_alive(pending.by_urgency(), now_s, expired), None)
    if seed is None:
        return Plan((), tuple(expired))
    batch = [seed]
    tokens = longest = seed.length_tokens
    squares = longest**2
    sides = (_alive(pending.shorter(seed), now_s, expired), _alive(pending.longer(seed), now_s, expired))
    nearest = [next(side, None) for side in sides]

    def extra_s(candidate: Sequence) -> float:
        """Return the seconds a token that the candidate would add, infinity where it must not join."""
        length = candidate.length_tokens
        joined = len(batch) + 1, tokens + length, max(longest, length), squares + length**2
        if joined[1] > limits.tokens or joined[0] * joined[2] ** 2 > limits.cells:
            return float("inf")
        if cost.padding_s(*joined) > cost.launch_s:
            return float("inf")
        return (cost.seconds(*joined) - cost.seconds(len(batch), tokens, longest, squares)) / length

    while True:
        extras_s = [extra_s(candidate) if candidate else float("inf") for candidate in nearest]
        best = extras_s.index(min(extras_s))
        joining = nearest[best]
        if joining is None or extras_s[best] == float("inf"):
            break
        batch.append(joining)
        tokens += joining.length_tokens
        longest = max(longest, joining.length_tokens)
        squares += joining.length_tokens**2
        nearest[best] = next(sides[best], None)
    return Plan(tuple(batch), tuple(dict.fromkeys(expired)))


def _alive(sequences: Iterator[Sequence], now_s: float, expired: list[Sequence]) -> Iterator[Sequence]:
    """Yield the sequences whose deadline has not passed, and note the others."""
    for sequence in sequences:
        if sequence.deadline_s > now_s:
            yield sequence
        else:
            expired.append(sequence)
