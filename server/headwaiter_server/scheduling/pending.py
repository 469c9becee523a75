"""The waiting sequences, in the order in which they should run.

The sequences of one tenant and one priority run in the order of their fair starts. While several tenants wait, each
runs tokens in proportion to its share (start-time fair queueing: Goyal, Vin and Cheng, 1996).
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from operator import attrgetter

from sortedcontainers import SortedDict

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.queued_request import Batch, Sequence
from headwaiter_server.settings.tenants import Tenant

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
        self._count = 0
        # None if no sequence waits, or if the leader has left since it was looked for.
        self._leader: Sequence | None = None
        # By the name of the tenant. A tenant stays, so that its next sequence finds what the tenant has used.
        self._tenants: dict[str, _TenantPending] = {}
        # The virtual time: the most that a tenant had used when a sequence of the tenant started.
        self._used = 0.0

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        """Return whether the sequence is waiting."""
        tenant = self._tenants.get(sequence.tenant.name)
        return tenant is not None and sequence in tenant

    def add(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self._count += 1
        leader = self._leader
        if leader is not None and (sequence.fair_start_s, sequence.priority) < (leader.fair_start_s, leader.priority):
            self._leader = sequence
        tenant = self._tenants.get(sequence.tenant.name)
        if tenant is None:
            tenant = self._tenants[sequence.tenant.name] = _TenantPending()
        if not tenant.tokens:
            # The tenant gets no credit for the time without work.
            tenant.used = max(tenant.used, self._used)
        tenant.add(sequence)
        self._count_tokens(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence.

        Raises:
            KeyError: the sequence is not waiting.
        """
        self._tenants[sequence.tenant.name].remove(sequence)
        self._count -= 1
        if sequence is self._leader:
            self._leader = None
        self._count_tokens(sequence, -sequence.length_tokens)

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence if it is waiting."""
        if sequence in self:
            self.remove(sequence)

    def take(self, batch: Batch) -> None:
        """Remove the sequences of a batch that starts, and note what their tenants have used."""
        for sequence in batch:
            self.discard(sequence)
        if len(self._tenants) > 1:
            for sequence in batch:
                tenant = self._tenants[sequence.tenant.name]
                self._used = max(self._used, tenant.used)
                tenant.used += sequence.length_tokens / tenant.share

    def in_turn(self) -> list[Iterator[Sequence]]:
        """Return the sequences of each priority that has any, in the order to run them; interactive first."""
        found = [[each for each in self._tenants.values() if each.by_fair_start[priority]] for priority in Priority]
        return [_in_turn(tenants, priority) for tenants, priority in zip(found, Priority, strict=True) if tenants]

    @property
    def leader(self) -> Sequence | None:
        """The sequence with the earliest fair start; of an equal pair, the interactive one."""
        if self._leader is None:
            first = [
                next(iter(starts.peekitem(0)[1]))
                for priority in Priority
                for tenant in self._tenants.values()
                if (starts := tenant.by_fair_start[priority])
            ]
            self._leader = earliest(first)
        return self._leader

    @property
    def mean_tokens(self) -> int:
        """Mean length of the waiting sequences, rounded down; 1 if no sequence is waiting."""
        # A scrape of the metrics reads both numbers in another thread, while they change, so either may be 0.
        return max(1, self.tokens // max(1, len(self)))

    def tokens_of(self, tenant: Tenant) -> int:
        """Return the number of tokens of a tenant."""
        waiting = self._tenants.get(tenant.name)
        return waiting.tokens if waiting else 0

    def tokens_before(self, fair_start_s: float, tenant: Tenant | None = None) -> int:
        """Return the number of tokens that start before a fair start, or in the same 0.1 s step.

        With a tenant, return the number of tokens that run before a sequence of the tenant with this fair start: in
        the meantime, each other tenant runs at most what its share allows.
        """
        # A scrape of the metrics counts in another thread, while requests of new tenants arrive.
        tenants = list(self._tenants.values())
        if tenant is None:
            return sum([each.tokens_before(fair_start_s) for each in tenants])
        waiting = self._tenants.get(tenant.name)
        own = waiting.tokens_before(fair_start_s) if waiting else 0
        others = [each for each in tenants if each is not waiting and each.tokens]
        return own + int(sum([min(each.tokens, own * each.share / tenant.share) for each in others]))

    def _count_tokens(self, sequence: Sequence, tokens: int) -> None:
        """Add tokens to the totals; a negative number subtracts tokens."""
        self.tokens += tokens
        self.hidden_tokens += tokens if sequence.hidden else 0


class _TenantPending:
    """The waiting sequences of one tenant.

    Attributes:
        tokens: number of tokens of the waiting sequences.
        share: share of the tenant, as its latest sequence has it.
        used: the tokens that have run, divided by the share; raised when work arrives after a pause.
        by_fair_start: the sequences of each priority by their fair starts.
    """

    def __init__(self) -> None:
        self.tokens, self.share, self.used = 0, 1.0, 0.0
        # A dict keeps sequences of the same fair start in order, and removes any of them in constant time.
        self.by_fair_start = {priority: SortedDict() for priority in Priority}
        self._steps = {priority: _TokensBySteps() for priority in Priority}

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.by_fair_start[sequence.priority].get(sequence.fair_start_s, ())

    def add(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self.share = sequence.tenant.share
        self.by_fair_start[sequence.priority].setdefault(sequence.fair_start_s, {})[sequence] = None
        self._count_tokens(sequence, sequence.length_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; raise KeyError if it is not waiting."""
        by_fair_start = self.by_fair_start[sequence.priority]
        same_start = by_fair_start[sequence.fair_start_s]
        del same_start[sequence]
        if not same_start:
            del by_fair_start[sequence.fair_start_s]
        self._count_tokens(sequence, -sequence.length_tokens)

    def in_order(self, priority: Priority) -> Iterator[Sequence]:
        """Return the sequences of a priority in the order of their fair starts."""
        return chain.from_iterable(self.by_fair_start[priority].values())

    def tokens_before(self, fair_start_s: float) -> int:
        """Return the number of tokens that start before a fair start, or in the same 0.1 s step."""
        if fair_start_s == float("inf"):
            return self.tokens
        return sum([steps.tokens_before(fair_start_s) for steps in self._steps.values() if steps.tokens])

    def _count_tokens(self, sequence: Sequence, tokens: int) -> None:
        """Add tokens to the totals; a negative number subtracts tokens."""
        self.tokens += tokens
        self._steps[sequence.priority].add(sequence.fair_start_s, tokens)


def _in_turn(tenants: list[_TenantPending], priority: Priority) -> Iterator[Sequence]:
    """Return the sequences of tenants, each time the next one of the tenant that would have used least by then."""
    return tenants[0].in_order(priority) if len(tenants) == 1 else _merged(tenants, priority)


def _merged(tenants: list[_TenantPending], priority: Priority) -> Iterator[Sequence]:
    queues = []
    for number, tenant in enumerate(tenants):
        sequences = tenant.in_order(priority)
        first = next(sequences)
        queues.append((tenant.used, first.fair_start_s, number, first, sequences))
    heapify(queues)
    while queues:
        used, _, number, sequence, sequences = queues[0]
        yield sequence
        following = next(sequences, None)
        if following is None:
            heappop(queues)
        else:
            used += sequence.length_tokens / tenants[number].share
            heapreplace(queues, (used, following.fair_start_s, number, following, sequences))


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
