"""Decide whether a failed call is sent again, and when; without a clock and without randomness."""

import math
import threading
from dataclasses import dataclass
from typing import TypeAlias

from headwaiter_client.calls.arguments import check_type
from headwaiter_proto.rules.errors import HeadwaiterError, Starting, Transient

# The retries that a client may take, however few calls are in flight.
_MIN_RETRIES = 10.0
_RETRIES_PER_CALL_IN_FLIGHT = 2.0
_RETRIES_PER_SUCCESS = 0.2
# A server that asks for at least this delay sets the pace of the retries itself.
_PACED_BY_SERVER_S = 0.1
# Clients that a server refuses with the same delay come back within this part of the delay.
_SPREAD_OF_DELAY = 0.2

Metadata: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed call is sent again, and after which wait.

    A call is sent again if its server cannot be reached or is draining (`Unavailable`), or if the server or a proxy is
    `Overloaded`. A call waits until its timeout for a server that is `Starting`. Requests change nothing on a server,
    so a request may be sent twice.

    Attributes:
        max_attempts: maximum number of times that a call is sent; 1 turns retries off. Attempts that a starting server
            refuses are not limited.
        initial_backoff_s: longest random wait before the second attempt; doubles with each further attempt.
        max_backoff_s: upper limit of this longest wait.

    Raises:
        TypeError: an attribute is not a number.
        ValueError: `max_attempts` is below 1, or the waits are negative, infinite or in the wrong order.
    """

    max_attempts: int = 5
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 1.0

    def __post_init__(self) -> None:
        check_type("max_attempts", self.max_attempts, int, "an int")
        for name in ("initial_backoff_s", "max_backoff_s"):
            check_type(name, getattr(self, name), float | int, "a float of seconds")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}: pass at least 1")
        if not 0 <= self.initial_backoff_s <= self.max_backoff_s < math.inf:
            raise ValueError(
                f"initial_backoff_s is {self.initial_backoff_s:g} and max_backoff_s is {self.max_backoff_s:g}: pass "
                "finite numbers with 0 <= initial_backoff_s <= max_backoff_s"
            )

    def allows(self, error: HeadwaiterError, attempts: int) -> bool:
        """Return whether a call may be sent again after an error, if `attempts` attempts have been made."""
        if isinstance(error, Starting):
            return self.max_attempts > 1
        return isinstance(error, Transient) and attempts < self.max_attempts

    def pause_s(self, error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float) -> float | None:
        """Return the seconds until a call that `allows` is sent again, or None if its deadline comes first.

        The pause is the delay that the server asks for plus a random part of an exponential back-off ("full jitter" in
        Brooker, Exponential Backoff and Jitter, 2015), or of a fifth of the delay if that is longer, so that clients
        that were refused together do not retry together.

        Args:
            error: why the last attempt failed.
            attempts: number of attempts so far.
            remaining_s: seconds until the deadline.
            jitter: random number from 0 to 1.
        """
        # Cap the exponent, because 2.0**1024 overflows; with 60, every usual back-off has reached max_backoff_s.
        backoff_s = min(self.max_backoff_s, self.initial_backoff_s * 2.0 ** min(attempts - 1, 60))
        delay_s = error.retry_after_s or 0.0
        pause_s = delay_s + jitter * max(backoff_s, _SPREAD_OF_DELAY * delay_s)
        return pause_s if pause_s < remaining_s else None


DEFAULT_RETRY = RetryPolicy()


class RetryBudget:
    """A retry policy with a budget that all calls of a client share. Threads may share the budget.

    The budget follows the calls in flight, as in Envoy, and the successes, as gRPC's retry throttling does (proposal
    A6). Each call that is sent again takes one retry from the budget, and each success returns a fifth. The budget is
    two retries for each call in flight, or ten if that is more, or as many as the policy allows one call. A burst of
    refusals therefore fails no call, and a client whose calls all fail soon stops retrying.

    A retry is free if the server has asked for a delay of 0.1 s or longer, because the server then sets the pace.

    Raises:
        TypeError: `policy` is not a RetryPolicy.

    Attributes:
        in_flight: number of calls in flight.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        check_type("retry", policy, RetryPolicy, "a RetryPolicy, such as RetryPolicy(max_attempts=3)")
        self.policy = policy
        self._min_retries = max(_MIN_RETRIES, policy.max_attempts - 1.0)
        self._taken = 0.0
        self.in_flight = 0
        self._lock = threading.Lock()

    def start_call(self) -> None:
        """Count a call that is now in flight."""
        with self._lock:
            self.in_flight += 1

    def end_call(self, *, success: bool) -> None:
        """Count a call that has ended; a success returns a part of a retry."""
        with self._lock:
            if success and self._taken:
                self._taken = max(0.0, min(self._taken, self._limit) - _RETRIES_PER_SUCCESS)
            self.in_flight -= 1

    def pause_s(self, error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float) -> float | None:
        """Return `RetryPolicy.pause_s`, and take a retry from the budget; return None if the budget is empty."""
        pause_s = self.policy.pause_s(error, attempts, remaining_s, jitter)
        if pause_s is None or (error.retry_after_s or 0.0) >= _PACED_BY_SERVER_S:
            return pause_s
        with self._lock:
            if self._taken + 1 > self._limit:
                return None
            self._taken += 1
        return pause_s

    @property
    def _limit(self) -> float:
        return max(self._min_retries, _RETRIES_PER_CALL_IN_FLIGHT * self.in_flight)
