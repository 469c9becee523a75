"""Whether a failed call is worth another try, and when: no clock and no randomness of its own."""

import math
import threading
from dataclasses import dataclass

from headwaiter_client.calls.arguments import check_type
from headwaiter_client.calls.steps import HEALTH_METHOD
from headwaiter_client.errors import HeadwaiterError, Overloaded, Unavailable

# What a client may retry before any of its calls has succeeded, and at most; or what its policy allows a single call.
_FIRST_RETRIES = 10.0
_MAX_RETRIES = 100.0
_RETRIES_PER_SUCCESS = 0.2


@dataclass(frozen=True)
class RetryPolicy:
    """How often a call that no replica has answered is sent again, and after how long.

    A call is sent again where its server cannot be reached, starts or drains (`Unavailable`), and where it is
    `Overloaded` and says for how long. Requests change nothing on a server, so twice does no harm.

    Attributes:
        max_attempts: most times a call is sent; 1: never again.
        initial_backoff_s: longest wait before the second attempt; doubled for each further one.
        max_backoff_s: what doubling ends at.

    Raises:
        TypeError: one of them is no number.
        ValueError: no attempt is allowed, or the waits are none.
    """

    max_attempts: int = 5
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 1.0

    def __post_init__(self) -> None:
        check_type("max_attempts", self.max_attempts, int, "an int")
        for name in ("initial_backoff_s", "max_backoff_s"):
            check_type(name, getattr(self, name), float | int, "a float of seconds")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; a call takes at least 1")
        if not 0 <= self.initial_backoff_s <= self.max_backoff_s < math.inf:
            raise ValueError(
                f"initial_backoff_s is {self.initial_backoff_s:g} and max_backoff_s {self.max_backoff_s:g}; "
                "they are finite, not negative, and the first is not above the second"
            )

    def wait_s(self, error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float) -> float | None:
        """Decides what to do after a failure.

        The wait is what the server asks for, and on top a random part of an exponential back-off ("full jitter" in
        Brooker, Exponential Backoff and Jitter, 2015), so that callers who were refused together return apart.

        Args:
            error: why the last attempt failed.
            attempts: how many there have been.
            remaining_s: seconds until the deadline.
            jitter: random, from 0 to 1.

        Returns:
            Seconds to wait before another attempt; None: there shall be none.
        """
        asked_s = error.retry_after_s
        worthwhile = isinstance(error, Unavailable) or (isinstance(error, Overloaded) and asked_s is not None)
        if not worthwhile or attempts >= self.max_attempts:
            return None
        # No limit is beyond 2**60 times a back-off that matters, and 2.0**1024 is beyond any float.
        backoff_s = min(self.max_backoff_s, self.initial_backoff_s * 2.0 ** min(attempts - 1, 60))
        wait_s = (asked_s or 0.0) + jitter * backoff_s
        return wait_s if wait_s < remaining_s else None


DEFAULT_RETRY = RetryPolicy()


class Retries:
    """What a policy asks for, within a budget that all calls share.

    There are ten retries to begin with, or as many as the policy allows one call if that is more, and one more for
    every five calls that succeed: where everything is refused, a client soon stops trying again, and does not add to
    the load. Threads may share it.

    Raises:
        TypeError: the policy is none.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        check_type("retry", policy, RetryPolicy, "a RetryPolicy, such as RetryPolicy(max_attempts=3)")
        self._policy = policy
        self._left = max(_FIRST_RETRIES, policy.max_attempts - 1.0)
        self._most = max(_MAX_RETRIES, self._left)
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Notes that a call has succeeded."""
        with self._lock:
            self._left = min(self._most, self._left + _RETRIES_PER_SUCCESS)

    def wait_s(self, error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float) -> float | None:
        """Decides as `RetryPolicy.wait_s`, and takes a retry from the budget; None where there is none left."""
        wait_s = self._policy.wait_s(error, attempts, remaining_s, jitter)
        with self._lock:
            if wait_s is None or self._left < 1:
                return None
            self._left -= 1
        return wait_s


class Budgets:
    """The retries of calls, and those of asking for health: who waits for a server to start has yet to call it."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._calls, self._checks = Retries(policy), Retries(policy)

    def of(self, method: str) -> Retries:
        """Returns the retries that a call of a method may take."""
        return self._checks if method == HEALTH_METHOD else self._calls
