"""What happens to a call after a failed attempt, given the error and the states of the replicas."""

import pytest

from headwaiter_client import InvalidInput, Overloaded, RetryPolicy, Unavailable
from headwaiter_client.calls.steps import HEALTH_METHOD, METHODS
from headwaiter_client.errors import DeviceFailed, HeadwaiterError, Starting
from headwaiter_client.transport.failover import Failover, OutgoingCall, Resend
from headwaiter_client.transport.log import TransportLog
from headwaiter_client.transport.replicas import Change, Replicas
from headwaiter_client.transport.retries import DEFAULT_RETRY, Attempts, RetryBudgets

ENCODE = METHODS["Encode"]
GONE = Unavailable("gone")
STARTS = Starting("starting", retry_after_s=1)
LOADS = Starting("the model is being loaded", field="model", retry_after_s=1)


def _call(method: str = ENCODE, timeout_s: float = 10) -> OutgoingCall:
    return OutgoingCall(method, b"", timeout_s, timeout_s, None, Attempts(()))


def _failover(answered: list[bool], policy: RetryPolicy = DEFAULT_RETRY) -> tuple[Failover, Replicas]:
    """Return the rules for replicas that have answered a call or, if not `answered`, have refused one."""
    replicas = Replicas(len(answered), first=0, probe_first=False)
    for index, has_answered in enumerate(answered):
        if has_answered:
            replicas.answered(index, 0, 1)
        else:
            replicas.refused(index, 1)
    addresses = [f"replica{index}:1" for index in range(len(answered))]
    return Failover(replicas, RetryBudgets(policy), TransportLog(addresses)), replicas


@pytest.mark.parametrize(
    ("answered", "error", "method", "resend"),
    [
        pytest.param([False, True], GONE, ENCODE, Resend.AT_ONCE, id="another replica is up"),
        pytest.param([True], GONE, ENCODE, Resend.WHEN_UP, id="the only server has answered before"),
        pytest.param([False], GONE, ENCODE, Resend.AFTER_PAUSE, id="the only server has never answered"),
        pytest.param([False, False], GONE, ENCODE, Resend.AFTER_PAUSE, id="no replica has ever answered"),
        pytest.param([False], STARTS, ENCODE, Resend.WHEN_UP, id="the only server is starting"),
        pytest.param([True, True], STARTS, ENCODE, Resend.AT_ONCE, id="another replica has started"),
        pytest.param([True], GONE, HEALTH_METHOD, Resend.AFTER_PAUSE, id="a health check asks for the present state"),
        pytest.param([True, True], Overloaded("full"), ENCODE, Resend.AFTER_PAUSE, id="an overloaded replica"),
        pytest.param([True, True], InvalidInput("no"), ENCODE, Resend.NEVER, id="an error of the caller"),
    ],
)
def test_what_happens_after_a_first_failure_of_replica_0(
    answered: list[bool], error: HeadwaiterError, method: str, resend: Resend
) -> None:
    failover, replicas = _failover(answered)
    if isinstance(error, Unavailable):
        replicas.refused(0, 2)
    assert failover.after(_call(method), 0, error, 2) is resend


def test_a_call_moves_once_to_each_replica_and_then_waits() -> None:
    failover, replicas = _failover([True, True, True])
    call, order = _call(), []
    for _ in range(2):
        order.append(replicas.next(call.attempts.unavailable))
        assert failover.after(call, order[-1], GONE, 2) is Resend.AT_ONCE
    order.append(replicas.next(call.attempts.unavailable))
    assert sorted(order) == [0, 1, 2]
    assert failover.after(call, order[-1], GONE, 2) is Resend.WHEN_UP


def test_moving_to_another_replica_takes_nothing_from_the_budget() -> None:
    failover, _ = _failover([True, True])
    for _ in range(1000):
        assert failover.after(_call(), 0, GONE, 2) is Resend.AT_ONCE
    assert failover.pause_s(_call(), GONE, 2, 0.5) is not None


@pytest.mark.parametrize(("max_attempts", "resend"), [(1, Resend.NEVER), (2, Resend.AT_ONCE)])
def test_a_call_without_retries_does_not_move(max_attempts: int, resend: Resend) -> None:
    failover, _ = _failover([True, True], RetryPolicy(max_attempts=max_attempts))
    assert failover.after(_call(), 0, GONE, 2) is resend


def test_a_model_that_is_being_loaded_says_nothing_about_its_server() -> None:
    replicas = Replicas(1, first=0, probe_first=False)
    assert replicas.failed(0, LOADS, 1, 2, is_silent=False) is None
    assert replicas.all_up
    assert replicas.failed(0, STARTS, 2, 3, is_silent=False) is Change.DOWN


@pytest.mark.parametrize(("max_attempts", "resend"), [(1, Resend.NEVER), (2, Resend.WHEN_UP)])
def test_a_starting_server_may_refuse_a_call_any_number_of_times(max_attempts: int, resend: Resend) -> None:
    failover, _ = _failover([True], RetryPolicy(max_attempts=max_attempts))
    call = _call()
    for _ in range(100):
        assert failover.after(call, 0, STARTS, 2) is resend
        assert failover.pause_s(call, STARTS, 2, 1.0) == pytest.approx(0.05)
        assert failover.pause_s(call, STARTS, 9.99, 1.0) == pytest.approx(0.01)
        assert failover.pause_s(call, LOADS, 2, 1.0) == pytest.approx(1.2)
    after = failover.after(call, 0, Overloaded("full", retry_after_s=1), 2)
    assert after is (Resend.NEVER if max_attempts == 1 else Resend.AFTER_PAUSE)


@pytest.mark.parametrize(
    ("error", "moves"), [(GONE, 6), (DeviceFailed("killed"), 4)], ids=["unavailable", "a killed device"]
)
def test_moves_are_no_attempts_unless_the_call_may_have_killed_a_device(error: Unavailable, moves: int) -> None:
    failover, replicas = _failover([True] * 7)
    call = _call()
    for _ in range(moves):
        assert failover.after(call, replicas.next(call.attempts.unavailable), error, 2) is Resend.AT_ONCE
    last = failover.after(call, replicas.next(call.attempts.unavailable), error, 2)
    assert last is (Resend.WHEN_UP if error is GONE else Resend.NEVER)


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(0.1, 0.25), (2, 0.5), (4, 1), (30, 1), (600, 1)])
def test_a_call_is_patient_for_a_quarter_of_its_timeout_within_limits(timeout_s: float, patience_s: float) -> None:
    assert _call(timeout_s=timeout_s).patience_s == patience_s
