"""Decide whether a request may queue, and when a refused request may try again: a pure function."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Overloaded
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.planner import REPLY_S
from headwaiter_server.settings.tenants import UNNAMED, Tenant

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
        tenant: the tenant that waits for them; None if any caller may.
    """

    pending: Pending
    cost: CostModel
    limits: BatchLimits
    tenant: Tenant | None = None

    def all_s(self) -> float:
        """Return the seconds that one device takes for all sequences."""
        return self.run_s(self.pending.tokens)

    def ahead_s(self, fair_start_s: float) -> float:
        """Return the seconds that one device takes for all sequences that start before a fair start."""
        return self.run_s(self.pending.tokens_before(fair_start_s, self.tenant))

    def work_s(self, shape: Shape, filling_tokens: int) -> float:
        """Return the seconds from the start of a request to its answer, with this number of tokens of others."""
        longest = shape.longest_tokens
        alone_s = self.cost.seconds(1, longest, longest, longest * longest, shape.hidden)
        return max(alone_s, self.run_s(shape.tokens + filling_tokens)) + REPLY_S

    def run_s(self, tokens: int) -> float:
        """Return the seconds that one device takes for this many tokens, in full batches of average sequences."""
        if not tokens:
            return 0.0
        cost, pending = self.cost, self.pending
        # A batch that is not full costs a launch too.
        limits = self.limits
        full_s = cost.in_full_batches_s(tokens, pending.mean_tokens, limits.tokens, limits.sequences)
        all_s = max(cost.seconds(1, 1, 1, 1), full_s)
        return all_s + cost.hidden_row_s * tokens * pending.hidden_tokens / max(1, pending.tokens)


# Takes the seconds of a model's own work before a fair start, and the fair start. Yields the seconds that the other
# models take meanwhile: first upper bounds that cost little to compute, and last the estimate.
OthersWork = Callable[[float, float], Iterable[float]]


@dataclass(eq=False, slots=True)
class WaitEstimate:
    """Estimates when a request that arrives now would start, and when it would be answered.

    Attributes:
        own: the waiting sequences of the request's model.
        queued_tokens: tokens of the model that have not started to run, in planned batches too.
        busy_s: for each device, predicted seconds until its batches are done; at least one device.
        others_s: the seconds that the other models take meanwhile.
    """

    own: Backlog
    queued_tokens: int
    busy_s: tuple[float, ...]
    others_s: OthersWork = lambda own_s, fair_start_s: (0.0,)

    def wait_s(self, fair_start_s: float = float("inf"), enough_s: float = 0.0) -> float:
        """Return the seconds until the start of a request with this fair start; by default behind all others.

        If the wait is at most `enough_s`, the result may be any number between the wait and `enough_s`.
        """
        own_s, free_in_s, devices = self.own.ahead_s(fair_start_s), min(self.busy_s), len(self.busy_s)
        wait_s = free_in_s
        for others_s in self.others_s(own_s, fair_start_s):
            wait_s = free_in_s + (own_s + others_s) / devices
            if wait_s <= enough_s:
                break
        return wait_s

    def own_work_s(self, fair_start_s: float, shape: Shape) -> float:
        """Return the seconds from the start of a request with this fair start to its answer.

        Less urgent sequences may fill up the request's last batch, so that its answer takes longer.
        """
        pending = self.own.pending
        filling_tokens = min(
            pending.tokens - pending.tokens_before(fair_start_s, self.own.tenant), self.own.limits.tokens
        )
        return self.own.work_s(shape, filling_tokens)


def admit(estimate: WaitEstimate, limits: QueueLimits, shape: Shape, fair_start_s: float, time_left_s: float) -> None:
    """Refuse a request that does not fit in the queue, would wait too long, or would miss its deadline.

    Sequences with a later fair start than the request do not delay it.

    Raises:
        InvalidInput: the request does not fit even in an empty queue.
        DeadlineExceeded: the request is refused now, and the same time limit would be too short even if no other
            request waited.
        Overloaded: the request does not fit now; the error holds the delay after which to try again.
    """
    tokens, tenant = shape.tokens, estimate.own.tenant or UNNAMED
    queued_tokens = estimate.queued_tokens
    most_tokens = min(limits.tokens, tenant.queue_tokens)
    if tokens > most_tokens:
        holds = "the queue" if most_tokens == limits.tokens else f"the queue of tenant {tenant.name}"
        raise InvalidInput(
            f"the request has {tokens} tokens; {holds} holds at most {most_tokens:g}: split the request",
            limit=round(most_tokens),
            actual=tokens,
        )
    # An idle server runs the request at once, so the queue cannot be the reason for a missed deadline.
    if not (queued_tokens or min(estimate.busy_s)):
        return
    if queued_tokens + tokens > limits.tokens:
        problem = f"the queue holds {queued_tokens} of {limits.tokens} tokens and the request has {tokens}"
        raise _too_late(estimate, shape, time_left_s) or _overloaded(problem, estimate.wait_s(), limits.tokens)
    if tenant.name:
        _check_tenant(estimate, tenant, limits, tokens)
    own_work_s = estimate.own_work_s(fair_start_s, shape) if time_left_s < float("inf") else 0.0
    wait_s = estimate.wait_s(fair_start_s, min(limits.wait_s, time_left_s - own_work_s))
    if wait_s > limits.wait_s:
        # Rounded up, because a wait of 2.0004 s is not "2 s; at most 2 s".
        shown_s = math.ceil(1e3 * wait_s) / 1e3
        problem = f"the request would wait {shown_s:.3f} s; the server admits waits of at most {limits.wait_s:g} s"
        raise _too_late(estimate, shape, time_left_s) or _overloaded(problem, wait_s)
    answer_s = wait_s + own_work_s
    if wait_s > 0 and answer_s > time_left_s:
        problem = f"the answer could take {answer_s:.3f} s, and the deadline is in {time_left_s:.3f} s"
        advice = ", or with a later deadline"
        raise _too_late(estimate, shape, time_left_s) or _overloaded(problem, wait_s, advice=advice)


def _check_tenant(estimate: WaitEstimate, tenant: Tenant, limits: QueueLimits, tokens: int) -> None:
    """Refuse a request whose tenant has too many tokens in the queue.

    A tenant may queue more only if it then has at most as many tokens as are still free, so that no tenant fills the
    queue of the others. A request of any size may enter an empty queue.
    """
    held = estimate.own.pending.tokens_of(tenant)
    free = limits.tokens - estimate.queued_tokens - tokens
    if estimate.queued_tokens and held + tokens > min(free, tenant.queue_tokens):
        problem = f"{held} tokens of tenant {tenant.name} wait, and the request has {tokens}"
        if tenant.queue_tokens <= free:
            problem += f"; at most {tenant.queue_tokens:g} may wait"
        else:
            problem += f"; one tenant may hold only as many of the queue's {limits.tokens} tokens as are still free"
        limit = min(limits.tokens, tenant.queue_tokens)
        raise _overloaded(problem, estimate.wait_s(), round(limit))


def _too_late(estimate: WaitEstimate, shape: Shape, time_left_s: float) -> HeadwaiterError | None:
    """Return the refusal of a request that must not try again with a deadline as short as its own."""
    needed_s = estimate.own.work_s(shape, 0)
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
