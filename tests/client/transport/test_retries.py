"""Whether and when a failed call is sent again, given the error, the attempts, the deadline and the budget."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import HeadwaiterError, Overloaded, RetryPolicy, Starting, Unavailable
from headwaiter_client.transport.retries import RetryBudget
from headwaiter_proto.rules import errors

POLICY = RetryPolicy(max_attempts=4, initial_backoff_s=0.1, max_backoff_s=0.3)
REFUSAL = Unavailable("refused")

# Up to the longest delay that a server may ask for.
seconds = st.floats(0, 1e6)
policies = st.builds(
    lambda attempts, waits: RetryPolicy(attempts, min(waits), max(waits)),
    st.integers(1, 2000),
    st.tuples(seconds, seconds),
)


@pytest.mark.parametrize(
    ("error", "attempts", "remaining_s", "jitter", "pause_s"),
    [
        pytest.param(REFUSAL, 1, 10, 1, 0.1, id="the back-off"),
        pytest.param(REFUSAL, 1, 10, 0.5, 0.05, id="a random part of the back-off"),
        pytest.param(REFUSAL, 2, 10, 1, 0.2, id="the back-off doubles"),
        pytest.param(REFUSAL, 3, 10, 1, 0.3, id="the back-off stops at its limit"),
        pytest.param(REFUSAL, 1, 0.1, 1, None, id="the wait would end at the deadline"),
        pytest.param(Overloaded("full", retry_after_s=2), 1, 10, 0, 2, id="the delay that the server asks for"),
        pytest.param(Overloaded("full", retry_after_s=0.5), 2, 10, 1, 0.7, id="the delay and the back-off"),
        pytest.param(Overloaded("full", retry_after_s=2), 2, 10, 1, 2.4, id="the delay and a fifth of the delay"),
        pytest.param(Overloaded("full", retry_after_s=2), 1, 2, 0, None, id="the delay is longer than the time left"),
        pytest.param(Starting("starts", retry_after_s=2), 1, 10, 0, 2, id="the delay of a starting server"),
        pytest.param(Overloaded("rate limit"), 2, 10, 1, 0.2, id="a proxy that names no delay"),
    ],
)
def test_the_wait_before_the_next_attempt(
    error: HeadwaiterError, attempts: int, remaining_s: float, jitter: float, pause_s: float | None
) -> None:
    assert POLICY.pause_s(error, attempts, remaining_s, jitter) == (
        pause_s if pause_s is None else pytest.approx(pause_s)
    )


# The order is the same in every run, which pytest-xdist needs.
_KINDS: list[type[HeadwaiterError]] = [HeadwaiterError, *errors.ERROR_BY_REASON.values()]
_NOT_RETRIED = [kind for kind in _KINDS if not issubclass(kind, errors.Transient)]


@pytest.mark.parametrize("error_class", list(dict.fromkeys(_NOT_RETRIED)))
def test_a_call_that_failed_for_another_reason_is_never_sent_again(error_class: type[HeadwaiterError]) -> None:
    assert not POLICY.allows(error_class("no", retry_after_s=0), 1)


def test_a_call_is_sent_again_until_no_attempt_is_left() -> None:
    assert [POLICY.allows(REFUSAL, attempts) for attempts in (1, 3, 4, 5)] == [True, True, False, False]


@given(policies, st.integers(1, 3000), seconds, st.floats(0, 1), st.none() | seconds)
def test_a_wait_ends_before_the_deadline_and_no_sooner_than_the_server_asks(
    policy: RetryPolicy, attempts: int, remaining_s: float, jitter: float, server_delay_s: float | None
) -> None:
    pause_s = policy.pause_s(Unavailable("no", retry_after_s=server_delay_s), attempts, remaining_s, jitter)
    if pause_s is None:
        assert 1.2 * (server_delay_s or 0) + policy.max_backoff_s >= remaining_s
    else:
        assert (server_delay_s or 0) <= pause_s < remaining_s
        assert pause_s <= (server_delay_s or 0) + max(policy.max_backoff_s, 0.2 * (server_delay_s or 0))


def _budget(in_flight: int, policy: RetryPolicy = POLICY) -> RetryBudget:
    budget = RetryBudget(policy)
    for _ in range(in_flight):
        budget.start_call()
    return budget


def _retries(budget: RetryBudget, calls: int) -> int:
    """Let calls fail, and return how many of them may be sent again."""
    return sum(budget.pause_s(REFUSAL, 1, 10, 1) is not None for _ in range(calls))


@given(st.integers(1, 300), st.lists(st.booleans(), max_size=400))
def test_retries_are_at_most_the_budget_plus_a_fifth_of_the_successes(in_flight: int, successes: list[bool]) -> None:
    budget = _budget(in_flight)
    taken = 0
    for success in successes:
        if success:
            budget.start_call()
            budget.end_call(success=True)
        else:
            taken += _retries(budget, 1)
    assert taken <= max(10, 2 * (in_flight + 1)) + successes.count(True) / 5


@pytest.mark.parametrize(("in_flight", "budget"), [(1, 10), (5, 10), (6, 12), (64, 128)])
def test_the_budget_is_two_retries_for_each_call_in_flight_and_at_least_ten(in_flight: int, budget: int) -> None:
    assert _retries(_budget(in_flight), 1000) == budget


def test_the_budget_shrinks_with_the_calls_in_flight_and_each_success_returns_a_fifth() -> None:
    budget = _budget(64)
    assert _retries(budget, 1000) == 128
    for _ in range(63):
        budget.end_call(success=False)
    assert _retries(budget, 1) == 0
    for _ in range(11):
        budget.start_call()
        budget.end_call(success=True)
    assert _retries(budget, 1000) == 2


def test_the_budget_is_at_least_what_the_policy_allows_one_call() -> None:
    budget = _budget(1, RetryPolicy(max_attempts=300))
    taken = [budget.pause_s(REFUSAL, attempts, math.inf, 0) is not None for attempts in range(1, 301)]
    assert taken == [True] * 299 + [False]
    assert budget.pause_s(REFUSAL, 1, math.inf, 0) is None


@pytest.mark.parametrize(("delay_s", "retries"), [(0.1, 1000), (5, 1000), (0.09, 10), (None, 10)])
def test_a_server_that_asks_for_a_delay_sets_the_pace_without_the_budget(delay_s: float | None, retries: int) -> None:
    budget, refusal = _budget(1), Overloaded("full", retry_after_s=delay_s)
    assert sum(budget.pause_s(refusal, 1, 10, 0) is not None for _ in range(1000)) == retries


def test_a_call_that_is_not_sent_again_takes_nothing_from_the_budget() -> None:
    budget = _budget(1)
    for _ in range(100):
        assert budget.pause_s(REFUSAL, 1, 0.01, 1) is None
    assert budget.pause_s(REFUSAL, 1, 10, 1) is not None


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"initial_backoff_s": -1}, "initial_backoff_s is -1"),
        ({"initial_backoff_s": 2}, "initial_backoff_s is 2"),
        ({"max_backoff_s": math.inf}, "max_backoff_s is inf"),
        ({"max_backoff_s": math.nan}, "max_backoff_s is nan"),
    ],
)
def test_a_policy_with_impossible_numbers_is_refused(arguments: dict[str, float], shown: str) -> None:
    with pytest.raises(ValueError, match=shown):
        RetryPolicy(**arguments)  # type: ignore[arg-type]
