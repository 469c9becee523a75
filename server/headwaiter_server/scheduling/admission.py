"""Decide whether a request may queue, and when a refused request may try again: a pure function."""

from dataclasses import dataclass

from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Overloaded
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.planner import REPLY_S

# A caller that tries again earlier would find the queue unchanged.
_MIN_RETRY_AFTER_S = 0.01


@dataclass(frozen=True)
class QueueLimits:
    """The limits of the queue.

    Attributes:
        tokens: most tokens that may wait.
        wait_s: longest estimated wait of an admitted request, in seconds.
    """

    tokens: int
    wait_s: float


@dataclass(eq=False, slots=True)
class Backlog:
    """The waiting sequences of one model.

    Attributes:
        pending: waiting sequences that are not in a planned batch.
        cost: predicts the seconds of a batch.
        limits: the batch limits.
    """

    pending: Pending
    cost: CostModel
    limits: BatchLimits

    def ahead_s(self, fair_start_s: float) -> float:
        """Return the seconds that one device takes for all sequences that start before a fair start."""
        return self.run_s(self.pending.tokens_before(fair_start_s))

    def work_s(self, shape: Shape, filling_tokens: int) -> float:
        """Return the seconds from the start of a request to its answer, with this number of tokens of others."""
        longest = shape.longest_tokens
        alone_s = self.cost.seconds(1, longest, longest, longest * longest, shape.hidden)
        return max(alone_s, self.run_s(shape.tokens + filling_tokens)) + REPLY_S

    def run_s(self, tokens: int) -> float:
        """Return the seconds that one device takes for this many tokens, in full batches of average sequences."""
        if not tokens:
            return 0.0
        # A batch that is not full costs a launch too.
        smallest_batch_s = self.cost.seconds(1, 1, 1, 1)
        full_batches_s = self.cost.in_full_batches_s(tokens, self.pending.mean_tokens, self.limits.tokens)
        hidden_share = self.pending.hidden_tokens / max(1, self.pending.tokens)
        return max(smallest_batch_s, full_batches_s) + self.cost.hidden_row_s * hidden_share * tokens


@dataclass(eq=False, slots=True)
class WaitEstimate:
    """Estimates when a request that arrives now would start, and when it would be answered.

    Attributes:
        own: the waiting sequences of the request's model.
        planned_tokens: tokens of the model in planned batches that have not started.
        busy_s: for each device, predicted seconds until its batches are done; at least one device.
        others: the waiting sequences of the other models.
    """

    own: Backlog
    planned_tokens: int
    busy_s: tuple[float, ...]
    others: tuple[Backlog, ...] = ()

    def wait_s(self, fair_start_s: float = float("inf")) -> float:
        """Return the seconds until the start of a request with this fair start; by default behind all others.

        While the model runs what is ahead of the request, each other model takes at most as much time as the model.
        """
        own_s = self.own.ahead_s(fair_start_s)
        others_s = sum(min(own_s, other.ahead_s(fair_start_s)) for other in self.others)
        return min(self.busy_s) + (own_s + others_s) / len(self.busy_s)

    def answer_s(self, fair_start_s: float, shape: Shape) -> float:
        """Return the seconds until the answer to a request with this fair start.

        Less urgent sequences may fill up the request's last batch, so that its answer takes longer.
        """
        pending = self.own.pending
        filling_tokens = min(pending.tokens - pending.tokens_before(fair_start_s), self.own.limits.tokens)
        return self.wait_s(fair_start_s) + self.own.work_s(shape, filling_tokens)


def admit(estimate: WaitEstimate, limits: QueueLimits, shape: Shape, fair_start_s: float, time_left_s: float) -> None:
    """Refuse a request that does not fit in the queue, would wait too long, or would miss its deadline.

    Sequences with a later fair start than the request do not delay it.

    Raises:
        InvalidInput: the request does not fit even in an empty queue.
        DeadlineExceeded: the request is refused now, and the same time limit would be too short even if no other
            request waited.
        Overloaded: the request does not fit now; the error holds the delay after which to try again.
    """
    tokens = shape.tokens
    queued_tokens = estimate.own.pending.tokens + estimate.planned_tokens
    if tokens > limits.tokens:
        raise InvalidInput(
            f"the request has {tokens} tokens; the queue holds at most {limits.tokens}: split the request",
            limit=limits.tokens,
            actual=tokens,
        )
    # An idle server runs the request at once, so the queue cannot be the reason for a missed deadline.
    if not (queued_tokens or min(estimate.busy_s)):
        return
    needed_s = estimate.own.work_s(shape, 0)
    if queued_tokens + tokens > limits.tokens:
        problem = f"the queue holds {queued_tokens} of {limits.tokens} tokens and the request has {tokens}"
        wait_s = estimate.wait_s()
        raise _too_late(needed_s, time_left_s) or _overloaded(problem, wait_s, limits.tokens)
    wait_s = estimate.wait_s(fair_start_s)
    if wait_s > limits.wait_s:
        problem = f"the request would wait {wait_s:.2f} s; the server admits waits of at most {limits.wait_s:g} s"
        raise _too_late(needed_s, time_left_s) or _overloaded(problem, wait_s)
    answer_s = estimate.answer_s(fair_start_s, shape)
    if wait_s > 0 and answer_s > time_left_s:
        problem = f"the answer could take {answer_s:.3f} s, and the deadline is in {time_left_s:.3f} s"
        advice = ", or with a later deadline"
        raise _too_late(needed_s, time_left_s) or _overloaded(problem, wait_s, advice=advice)


def _too_late(needed_s: float, time_left_s: float) -> HeadwaiterError | None:
    """Return the refusal of a request that must not try again with a deadline as short as its own."""
    if needed_s <= time_left_s:
        return None
    return DeadlineExceeded(
        f"the deadline is in {max(0.0, time_left_s):.3f} s, and the answer could take {needed_s:.3f} s even if no "
        "other request waited: allow more time"
    )


def _overloaded(problem: str, wait_s: float, limit: int | None = None, advice: str = "") -> Overloaded:
    retry_after_s = max(wait_s, _MIN_RETRY_AFTER_S)
    return Overloaded(
        f"{problem}: try again in {retry_after_s:.2f} s{advice}", retry_after_s=retry_after_s, limit=limit
    )
