"""Decide what happens to a call after a failed attempt; without I/O, clock and randomness, for both transports."""

from dataclasses import dataclass
from enum import Enum

from headwaiter_client.calls.steps import HEALTH_METHOD
from headwaiter_client.errors import DeviceFailed, HeadwaiterError, Starting, Unavailable
from headwaiter_client.transport.log import TransportLog
from headwaiter_client.transport.replicas import Replicas, concerns_all_calls
from headwaiter_client.transport.retries import Attempts, RetryBudgets

# A replica that answers nothing for a quarter of a call's timeout is probed, and the probe may take as long again. Half
# of the timeout is then left for another replica.
_PATIENCE_SHARE = 0.25
_MIN_PATIENCE_S, _MAX_PATIENCE_S = 0.25, 1.0


class Resend(Enum):
    """What happens to a call after a failed attempt."""

    NEVER = "the call fails"
    AT_ONCE = "the call moves to another replica, which costs no retry"
    WHEN_UP = "the call waits until a replica is up, and then for its pause"
    AFTER_PAUSE = "the call is sent again after a pause, which costs a retry"


@dataclass(slots=True)
class OutgoingCall:
    """A call of a client: what is sent, until when, and the attempts so far.

    Attributes:
        method: the gRPC path.
        request: the serialized message.
        timeout_s: the timeout of the call, for messages.
        deadline_s: the time at which the call ends.
        request_id: the request's id, for errors.
        attempts: the attempts so far.
    """

    method: str
    request: bytes
    timeout_s: float
    deadline_s: float
    request_id: str | None
    attempts: Attempts

    @property
    def name(self) -> str:
        """The name of the method, for log records."""
        return self.method.rpartition("/")[2]

    @property
    def patience_s(self) -> float:
        """Seconds without any answer of its replica after which the call asks for a probe."""
        return min(max(self.timeout_s * _PATIENCE_SHARE, _MIN_PATIENCE_S), _MAX_PATIENCE_S)


class Failover:
    """The rules by which the calls of a client are sent again."""

    def __init__(self, replicas: Replicas, budgets: RetryBudgets, log: TransportLog) -> None:
        self._replicas = replicas
        self._budgets = budgets
        self._log = log

    def after(self, call: OutgoingCall, index: int, error: HeadwaiterError, now_s: float) -> Resend:
        """Count the failure of an attempt, and return what happens to the call.

        Args:
            call: the call.
            index: the replica that got the attempt.
            error: why the attempt failed.
            now_s: the time.
        """
        attempts, policy = call.attempts, self._budgets.of(call.method).policy
        moves = isinstance(error, Unavailable) and self._replicas.has_others({*attempts.unavailable, index})
        # A move to a replica that is up is part of the attempt, unless the call itself may have killed the device.
        free = moves and not isinstance(error, DeviceFailed) and policy.max_attempts > 1
        attempts.note_failure(error, ends_attempt=not free and not isinstance(error, Starting))
        if not policy.allows(error, attempts.count):
            return Resend.NEVER
        if not isinstance(error, Unavailable):
            return Resend.AFTER_PAUSE
        attempts.unavailable.add(index)
        if moves:
            self._log.failover(call.name, index, error, now_s)
            return Resend.AT_ONCE
        attempts.unavailable.clear()
        # A server that has never answered is more likely to have the wrong address than to be restarted, and a health
        # check asks for the present state.
        answered = self._replicas.any_answered or isinstance(error, Starting)
        if answered and call.method != HEALTH_METHOD:
            attempts.waited = True
            return Resend.WHEN_UP
        return Resend.AFTER_PAUSE

    def pause_s(self, call: OutgoingCall, error: HeadwaiterError, now_s: float, jitter: float) -> float | None:
        """Return the seconds until a call is sent again, or None if the call fails: a retry may not be left."""
        attempts, left_s = call.attempts, call.deadline_s - now_s
        budget = self._budgets.of(call.method)
        pause_s: float | None
        if isinstance(error, Starting) and concerns_all_calls(error):
            # The call has waited for a health check that succeeds. The calls that waited come back one after another.
            pause_s = min(jitter * budget.policy.initial_backoff_s, max(0.0, left_s))
        else:
            pause_s = budget.pause_s(error, attempts.count, left_s, jitter)
        if pause_s is not None:
            self._log.retry(call.name, pause_s, attempts.count, error, now_s)
        return pause_s
