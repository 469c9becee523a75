"""Decides whether a request may queue: a pure function of what waits, how long it should take, and the deadline."""

from dataclasses import dataclass

from headwaiter_server.errors import InvalidInput, Overloaded
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.pending import Pending

# What is admitted should be answered, and a wait is hard to foretell: what comes next may go first.
_CAUTION = 1.25
# Who comes again sooner finds all as it was.
_SOONEST_S = 0.01


@dataclass(frozen=True)
class QueueLimits:
    """What may wait.

    Attributes:
        tokens: together.
        wait_s: how long a request that comes may have to wait, by estimate.
    """

    tokens: int
    wait_s: float


@dataclass(eq=False, slots=True)
class Outlook:
    """What a request that comes now has before it.

    Attributes:
        pending: what waits and is not planned yet.
        ahead_tokens: what waits in planned batches.
        busy_s: how long what each device was given should still take; one device at least.
        cost: the seconds a batch takes, as far as waits are concerned.
        limits: how large it may be.
        margin_s: how much earlier than a deadline an answer has to be expected.
    """

    pending: Pending
    ahead_tokens: int
    busy_s: tuple[float, ...]
    cost: CostModel
    limits: BatchLimits
    margin_s: float

    def wait_s(self, tokens_ahead: int) -> float:
        """Return when what comes behind so many tokens should start."""
        return min(self.busy_s) + self._run_s(tokens_ahead) / len(self.busy_s)

    def answer_s(self, tokens_ahead: int, shape: Shape) -> float:
        """Return when a request behind so many tokens should be answered; what fills its last batch runs with it."""
        beside = min(self.pending.tokens - tokens_ahead, self.limits.tokens)
        longest = shape.longest_tokens
        alone_s = self.cost.seconds(1, longest, longest, longest * longest)
        return self.wait_s(tokens_ahead) + max(alone_s, self._run_s(shape.tokens + beside)) + self.margin_s

    def _run_s(self, tokens: int) -> float:
        """Return the seconds of so many tokens, in full batches of sequences as long as those that wait on average."""
        if not tokens:
            return 0.0
        # A batch that is not full takes a launch all the same.
        least_s = self.cost.seconds(1, 1, 1, 1)
        full_s = self.cost.in_full_batches_s(tokens, self.pending.mean_tokens, self.limits.tokens)
        return max(least_s, full_s)


def admit(outlook: Outlook, limits: QueueLimits, shape: Shape, due_s: float, time_left_s: float) -> None:
    """Refuse a request that the queue has no room for, or that could not be answered in time.

    Args:
        outlook: what it has before it.
        limits: what may wait.
        shape: of the request.
        due_s: how urgent it is; what is due later waits for it.
        time_left_s: until its deadline.

    Raises:
        InvalidInput: no queue could hold it.
        Overloaded: with the time after which to try again.
    """
    tokens = shape.tokens
    waiting = outlook.pending.tokens + outlook.ahead_tokens
    if tokens > limits.tokens:
        raise InvalidInput(
            f"the request has {tokens} tokens, and the server queues {limits.tokens} at most: split it",
            limit=limits.tokens,
            actual=tokens,
        )
    # Where there is no queue, a deadline that cannot be met is at fault itself, and not the load.
    if not (waiting or min(outlook.busy_s)):
        return
    if waiting + tokens > limits.tokens:
        what = f"the queue holds {waiting} of {limits.tokens} tokens and the request has {tokens}"
        raise _overloaded(what, outlook.wait_s(outlook.pending.tokens), limits.tokens)
    ahead = outlook.pending.tokens_due_by(due_s)
    wait_s = outlook.wait_s(ahead)
    if wait_s > limits.wait_s:
        what = f"the request would wait for {wait_s:.2f} s, and the server lets none wait for more than"
        raise _overloaded(f"{what} {limits.wait_s:g} s", wait_s)
    answer_s = _CAUTION * outlook.answer_s(ahead, shape)
    if wait_s > 0 and answer_s > time_left_s:
        what = f"the answer could take {answer_s:.3f} s, and the deadline is in {max(0.0, time_left_s):.3f} s"
        raise _overloaded(what, wait_s, advice=", or with more time")


def _overloaded(what: str, wait_s: float, limit: int | None = None, advice: str = "") -> Overloaded:
    retry_after_s = max(wait_s, _SOONEST_S)
    return Overloaded(f"{what}: try again in {retry_after_s:.2f} s{advice}", retry_after_s=retry_after_s, limit=limit)
