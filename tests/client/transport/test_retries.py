"""What becomes of a call that failed: decided from the error, the attempts, the deadline and the budget alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import HeadwaiterError, Overloaded, RetryPolicy, Unavailable, errors
from headwaiter_client.transport.retries import Retries

POLICY = RetryPolicy(max_attempts=4, initial_backoff_s=0.1, max_backoff_s=0.3)
REFUSAL = Unavailable("refused")

# Up to where a server may ask to wait.
seconds = st.floats(0, 1e6)
policies = st.builds(
    lambda attempts, waits: RetryPolicy(attempts, min(waits), max(waits)),
    st.integers(1, 2000),
    st.tuples(seconds, seconds),
)


@pytest.mark.parametrize(
    ("error", "attempts", "remaining_s", "jitter", "wait_s"),
    [
        pytest.param(REFUSAL, 1, 10, 1, 0.1, id="the back-off"),
        pytest.param(REFUSAL, 1, 10, 0.5, 0.05, id="a random part of it"),
        pytest.param(REFUSAL, 2, 10, 1, 0.2, id="doubles"),
        pytest.param(REFUSAL, 3, 10, 1, 0.3, id="up to its limit"),
        pytest.param(REFUSAL, 4, 10, 1, None, id="no attempt is left"),
        pytest.param(REFUSAL, 1, 0.1, 1, None, id="the deadline is no later"),
        pytest.param(Overloaded("full", retry_after_s=2), 1, 10, 0, 2, id="what the server asks for"),
        pytest.param(Overloaded("full", retry_after_s=2), 2, 10, 1, 2.2, id="and the back-off on top"),
        pytest.param(Overloaded("full", retry_after_s=2), 1, 2, 0, None, id="the server asks for more than is left"),
        pytest.param(Unavailable("starts", retry_after_s=2), 1, 10, 0, 2, id="of one that starts, too"),
        pytest.param(Overloaded("full"), 1, 10, 0, None, id="the server does not say when"),
    ],
)
def test_a_call_is_sent_again(
    error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float, wait_s: float | None
) -> None:
    assert POLICY.wait_s(error, attempts, remaining_s, jitter) == (wait_s if wait_s is None else pytest.approx(wait_s))


# In an order that does not change from run to run.
_JUDGED = [
    kind for kind in (HeadwaiterError, *errors.ERROR_BY_REASON.values()) if kind not in (Overloaded, Unavailable)
]


@pytest.mark.parametrize("kind", list(dict.fromkeys(_JUDGED)))
def test_a_call_that_a_server_has_judged_is_never_sent_again(kind: type[HeadwaiterError]) -> None:
    assert POLICY.wait_s(kind("no", retry_after_s=0), 1, math.inf, 0) is None


@given(policies, st.integers(1, 3000), seconds, st.floats(0, 1), st.none() | seconds)
def test_a_wait_ends_before_the_deadline_and_no_sooner_than_the_server_asks(
    policy: RetryPolicy, attempts: int, remaining_s: float, jitter: float, asked_s: float | None
) -> None:
    wait_s = policy.wait_s(Unavailable("no", retry_after_s=asked_s), attempts, remaining_s, jitter)
    if wait_s is None:
        assert attempts >= policy.max_attempts or (asked_s or 0) + policy.max_backoff_s >= remaining_s
    else:
        assert attempts < policy.max_attempts
        assert (asked_s or 0) <= wait_s < remaining_s
        assert wait_s <= (asked_s or 0) + policy.max_backoff_s


@given(st.lists(st.booleans(), max_size=400))
def test_retries_are_few_to_begin_with_and_a_fifth_of_what_succeeds(successes: list[bool]) -> None:
    retries = Retries(POLICY)
    taken = 0
    for success in successes:
        if success:
            retries.succeeded()
        else:
            taken += retries.wait_s(REFUSAL, 1, 10, 1) is not None
    assert taken <= 10 + successes.count(True) / 5


def test_a_client_that_always_succeeded_saves_up_a_hundred_retries() -> None:
    retries = Retries(POLICY)
    for _ in range(1000):
        retries.succeeded()
    assert sum(retries.wait_s(REFUSAL, 1, 10, 1) is not None for _ in range(1000)) == 100


def test_a_policy_that_lets_a_call_try_longer_begins_with_as_many_retries() -> None:
    retries = Retries(RetryPolicy(max_attempts=300))
    taken = [retries.wait_s(REFUSAL, attempts, math.inf, 0) is not None for attempts in range(1, 301)]
    assert taken == [True] * 299 + [False]
    retries.succeeded()
    assert retries.wait_s(REFUSAL, 1, math.inf, 0) is None


def test_a_call_that_is_not_sent_again_costs_no_retry() -> None:
    retries = Retries(POLICY)
    for _ in range(100):
        assert retries.wait_s(HeadwaiterError("no"), 1, 10, 1) is None
    assert retries.wait_s(REFUSAL, 1, 10, 1) is not None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; a call takes at least 1"),
        (
            {"initial_backoff_s": -1},
            "initial_backoff_s is -1 and max_backoff_s 1; they are finite",
        ),
        ({"initial_backoff_s": 2}, "the first is not above the second"),
        ({"max_backoff_s": math.inf}, "max_backoff_s inf; they"),
        ({"max_backoff_s": math.nan}, "max_backoff_s nan; they"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
