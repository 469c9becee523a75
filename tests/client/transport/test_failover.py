"""The steps of a call, given the errors of its attempts and the states of the replicas."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwaiter_client import Cancelled, DeadlineExceeded, HeadwaiterError, InvalidInput, Overloaded, RetryPolicy
from headwaiter_client.calls.steps import HEALTH_METHOD, METHODS, no_answer
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.failover import Attempt, Failover, HealthCheck, OutgoingCall, Pause, Step
from headwaiter_client.transport.replicas import Change, Probe, Replicas
from headwaiter_client.transport.retries import DEFAULT_RETRY
from headwaiter_proto.rules.errors import DeviceFailed, Starting, Unavailable
from headwaiter_proto.rules.status import DEVICE_FAILURES_KEY

ENCODE = METHODS["Encode"]
GONE = Unavailable("gone")
STARTS = Starting("starting", retry_after_s=1)
LOADS = Starting("the model is being loaded", field="model", retry_after_s=1)
FULL = Overloaded("full", retry_after_s=2)


@dataclass
class _Event:
    is_set: bool = False

    def set(self) -> None:
        self.is_set = True


@dataclass
class _Time:
    now_s: float = 100.0


@dataclass
class _Taken:
    """The steps of a call as a test sees them: the replica of an attempt, or the seconds of a pause.

    Attributes:
        attempts: the replica of each attempt.
        pauses_s: the seconds of each pause before a retry.
        waits_s: the seconds of each pause until a replica may have changed.
        result: the reply, or the error of the call.
    """

    attempts: list[int] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    result: Any = None


class _Failover(Failover):
    """Replicas that all have answered a call, with a clock that only pauses move, and without a network."""

    def __init__(self, replicas: int, policy: RetryPolicy = DEFAULT_RETRY, *, answered: bool = True) -> None:
        self.time = _Time()
        self.probes: list[int] = []
        connection = Connection([f"127.0.0.1:{1 + index}" for index in range(replicas)])
        super().__init__(connection, policy, _Event, lambda: self.time.now_s, lambda: 1.0)
        self._start_probes()
        for index in range(replicas):
            self._probed(index, Probe.SERVING if answered else Probe.REFUSED, "")
        self.probes.clear()

    def _new_channels(self, index: int, count: int) -> list[Any]:
        raise AssertionError("there is no network")

    def _check_health(self, check: HealthCheck) -> None:
        assert not check.counts_front_ends, "one call at a time needs no second connection"
        self.probes.append(check.index)

    def serve(self, *indices: int) -> None:
        """Let the health checks of replicas succeed."""
        for index in indices:
            self._probed(index, Probe.SERVING, "")

    def call(
        self, *errors: HeadwaiterError, method: str = ENCODE, timeout_s: float = 10, back_after_s: float = 1e9
    ) -> _Taken:
        """Make a call of which the first attempts fail; all replicas are back some time after the call began."""
        left, taken = list(errors), _Taken()
        back_s = self.time.now_s + back_after_s
        call = OutgoingCall(method, b"", timeout_s, self.time.now_s + timeout_s, None, (("a", "b"),))
        with closing(self._steps(call)) as steps:
            try:
                step = next(steps)
                while True:
                    step = steps.throw(left.pop(0)) if self._take(step, taken, left, back_s) else steps.send(b"reply")
            except StopIteration as end:
                taken.result = end.value
            except HeadwaiterError as error:
                taken.result = error
        self.last = call
        return taken

    def _take(self, step: Step, taken: _Taken, errors: list[HeadwaiterError], back_s: float) -> bool:
        """Take a step, and return whether it fails."""
        if isinstance(step, Attempt):
            assert step.sent_s == self.time.now_s
            taken.attempts.append(step.index)
            return bool(errors)
        assert isinstance(step, Pause)
        assert step.pause_s >= 0
        (taken.pauses_s if step.changed is None else taken.waits_s).append(step.pause_s)
        self.time.now_s += step.pause_s
        if self.time.now_s >= back_s:
            self.serve(*range(len(self._asked_for_front_ends)))
            assert step.changed is None or step.changed.is_set
        return False


@pytest.mark.parametrize(
    ("replicas", "answered", "error", "method", "attempts", "pauses_s", "waits"),
    [
        pytest.param(2, True, GONE, ENCODE, [0, 1], [], False, id="another replica is up"),
        pytest.param(1, True, GONE, ENCODE, [0, 0], [0.05], True, id="the only server has answered before"),
        pytest.param(1, False, GONE, ENCODE, [0, 0], [0.05], False, id="the only server has never answered"),
        pytest.param(1, False, STARTS, ENCODE, [0, 0], [0.05], True, id="the only server is starting"),
        pytest.param(2, True, STARTS, ENCODE, [0, 1], [], False, id="another replica has started"),
        pytest.param(1, True, LOADS, ENCODE, [0, 0], [1.2], False, id="the server loads the model"),
        pytest.param(1, True, GONE, HEALTH_METHOD, [0, 0], [0.05], False, id="a health check asks for now"),
        pytest.param(2, True, FULL, ENCODE, [0, 1], [2.4], False, id="an overloaded replica"),
    ],
)
def test_what_a_call_does_after_a_first_failure_at_replica_0(
    replicas: int,
    answered: bool,
    error: HeadwaiterError,
    method: str,
    attempts: list[int],
    pauses_s: list[float],
    waits: bool,
) -> None:
    failover = _Failover(replicas, answered=answered)
    taken = failover.call(error, method=method, back_after_s=2)
    assert (taken.attempts, taken.result) == (attempts, b"reply")
    assert taken.pauses_s == pytest.approx(pauses_s)
    assert bool(taken.waits_s) is waits


@pytest.mark.parametrize("error", [InvalidInput("no"), Cancelled("closed"), DeadlineExceeded(no_answer(10))])
def test_other_errors_end_the_call(error: HeadwaiterError) -> None:
    taken = _Failover(2).call(error)
    assert (taken.attempts, taken.result) == ([0], error)


def test_a_replica_is_probed_after_a_call_without_an_answer_and_goes_down_if_it_is_silent() -> None:
    failover = _Failover(2)
    failover.time.now_s += 1
    failover.call(DeadlineExceeded(no_answer(10)))
    assert failover.probes == [0]
    failover._probed(0, Probe.SILENT, "no answer")
    assert [failover.call().attempts for _ in range(3)] == [[1]] * 3
    failover.time.now_s += 1
    failover.serve(0)
    assert failover.call().attempts == [0]


def test_a_refusal_by_the_deadline_is_an_answer() -> None:
    failover = _Failover(2)
    failover.time.now_s += 1
    failover.call(DeadlineExceeded("the queue is too long"))
    assert failover.probes == []


def test_a_call_waits_until_its_deadline_for_a_replica_to_be_up() -> None:
    failover = _Failover(1)
    taken = failover.call(GONE, timeout_s=7)
    assert (taken.result, taken.pauses_s) == (GONE, [])
    assert sum(taken.waits_s) == pytest.approx(7)
    assert failover.probes == [0] * 3  # Each probe without an outcome is lost after 2.5 s.


def test_a_call_waits_until_its_deadline_for_the_first_outcome_of_a_probe() -> None:
    failover = _Failover(1)
    failover._replicas = Replicas(1, 0, probe_first=True)
    taken = failover.call(timeout_s=3)
    assert (type(taken.result), str(taken.result)) == (DeadlineExceeded, no_answer(3))
    assert failover.call(back_after_s=1).attempts == [0]


def test_a_call_moves_once_to_each_replica_and_then_waits() -> None:
    failover = _Failover(3)
    taken = failover.call(GONE, GONE, GONE, back_after_s=2)
    assert taken.attempts[:3] == [0, 1, 2]
    assert len(taken.attempts) == 4
    assert taken.waits_s
    assert taken.result == b"reply"


def test_moving_to_another_replica_takes_nothing_from_the_budget() -> None:
    failover = _Failover(2)
    for _ in range(1000):
        assert failover.call(GONE).result == b"reply"
        failover.serve(0, 1)
    assert failover.call(Overloaded("full")).result == b"reply"


def test_a_call_fails_when_the_budget_of_all_calls_is_empty() -> None:
    failover, full = _Failover(1, RetryPolicy(max_attempts=2)), Overloaded("full")
    taken = [failover.call(full, full) for _ in range(100)]
    assert [each.result for each in taken] == [full] * 100
    assert sum(len(each.attempts) for each in taken) == 110
    assert failover.call(full).result == full


@pytest.mark.parametrize(("max_attempts", "attempts"), [(1, [0]), (2, [0, 1])])
def test_a_call_without_retries_does_not_move(max_attempts: int, attempts: list[int]) -> None:
    assert _Failover(2, RetryPolicy(max_attempts=max_attempts)).call(GONE).attempts == attempts


def test_a_call_is_sent_as_often_as_the_policy_allows() -> None:
    taken = _Failover(1, RetryPolicy(max_attempts=3)).call(*[Overloaded("full")] * 3)
    assert (len(taken.attempts), type(taken.result)) == (3, Overloaded)
    assert taken.pauses_s == [0.05, 0.1]


def test_a_model_that_is_being_loaded_says_nothing_about_its_server() -> None:
    replicas = Replicas(1, first=0, probe_first=False)
    assert replicas.failed(0, LOADS, 1, 2, is_silent=False) is None
    assert replicas.all_up
    assert replicas.failed(0, STARTS, 2, 3, is_silent=False) is Change.DOWN


def test_a_starting_server_may_refuse_a_call_any_number_of_times() -> None:
    policy = RetryPolicy(max_attempts=2, initial_backoff_s=0.05)
    taken = _Failover(1, policy).call(*[STARTS] * 50, timeout_s=1e6, back_after_s=0)
    assert (len(taken.attempts), taken.result) == (51, b"reply")
    assert taken.pauses_s == pytest.approx([0.05] * 50)
    assert _Failover(1, RetryPolicy(max_attempts=1)).call(STARTS).result == STARTS
    assert _Failover(1, policy).call(STARTS, FULL, FULL, back_after_s=0).result == FULL


def test_the_pause_after_a_start_ends_at_the_deadline() -> None:
    taken = _Failover(1).call(STARTS, timeout_s=2.51, back_after_s=2.5)
    assert taken.pauses_s == [pytest.approx(0.01)]


@pytest.mark.parametrize(
    ("error", "attempts"), [(GONE, 8), (DeviceFailed("killed"), 5)], ids=["unavailable", "a killed device"]
)
def test_moves_are_no_attempts_unless_the_call_may_have_killed_a_device(error: Unavailable, attempts: int) -> None:
    taken = _Failover(7).call(*[error] * 7, back_after_s=3)
    assert len(taken.attempts) == attempts
    assert taken.attempts[:5] == [0, 1, 2, 3, 4]


def test_a_call_says_how_often_it_has_killed_a_device() -> None:
    failover = _Failover(3)
    failover.call(DeviceFailed("killed"), GONE, DeviceFailed("killed"), back_after_s=1)
    assert dict(failover.last.metadata) == {"a": "b", DEVICE_FAILURES_KEY: "2"}
    failover.call(GONE, back_after_s=1)
    assert dict(failover.last.metadata) == {"a": "b"}


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(0.1, 0.25), (2, 0.5), (4, 1), (30, 1), (600, 1)])
def test_a_call_is_patient_for_a_quarter_of_its_timeout_within_limits(timeout_s: float, patience_s: float) -> None:
    assert OutgoingCall(ENCODE, b"", timeout_s, timeout_s, None, ()).patience_s == patience_s
