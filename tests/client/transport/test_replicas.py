"""The choice of the replica for the next call, and of the replicas to probe."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import DeadlineExceeded, HeadwaiterError, InvalidInput, Overloaded
from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S, Change, Probe, Replicas

# Probes of a replica that stays away are at most this far apart.
LONGEST_PAUSE_S = 1.0
# A failed call counts as in flight for this long.
PENALTY_S = 1.0


def _replicas(*up: bool, first: int = 0) -> Replicas:
    """Return replicas of which each has been probed once, at the time 0."""
    replicas = Replicas(len(up), first, probe_first=True)
    assert replicas.due(0) == list(range(len(up)))
    for index, state in enumerate(up):
        replicas.probed(index, Probe.SERVING if state else Probe.REFUSED, 0)
    return replicas


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_replicas_that_are_up_take_turns(up: list[bool], data: st.DataObject) -> None:
    replicas = _replicas(*up, first=data.draw(st.integers(0, len(up) - 1)))
    expected = [index for index, state in enumerate(up) if state] or range(len(up))
    assert Counter(replicas.next(0) for _ in range(3 * len(expected))) == dict.fromkeys(expected, 3)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.data())
def test_a_call_goes_to_the_replica_with_the_fewest_calls_in_flight(in_flight: list[int], data: st.DataObject) -> None:
    replicas = _replicas(*[True] * len(in_flight))
    for index, calls in enumerate(in_flight):
        others = set(range(len(in_flight))) - {index}
        assert [replicas.next(0, others) for _ in range(calls)] == [index] * calls
    ended = data.draw(st.integers(0, len(in_flight) - 1))
    if in_flight[ended]:
        replicas.ended(ended)
        in_flight[ended] -= 1
    assert in_flight[replicas.next(0)] == min(in_flight)


def test_equal_replicas_take_turns_when_each_call_ends_before_the_next() -> None:
    replicas, order = _replicas(True, True, True), []
    for _ in range(6):
        order.append(replicas.next(0))
        replicas.ended(order[-1])
    assert order == [0, 1, 2, 0, 1, 2]


def _share(error: HeadwaiterError, in_flight: int, calls_per_s: int) -> float:
    """Return replica 0's share of calls during 10 s; it fails them at once, replica 1 has some in flight."""
    replicas, taken = _replicas(True, True), 0
    for _ in range(in_flight):
        replicas.next(0, {0})
    for call in range(10 * calls_per_s):
        now_s = call / calls_per_s
        if (index := replicas.next(now_s)) == 0:
            taken += 1
            replicas.failed(0, error, now_s, now_s, is_silent=isinstance(error, DeadlineExceeded))
        replicas.ended(index)
    return taken / (10 * calls_per_s)


@pytest.mark.parametrize("error", [Overloaded("full"), HeadwaiterError("INTERNAL"), DeadlineExceeded("no answer")])
def test_a_replica_that_fails_calls_at_once_gets_few(error: HeadwaiterError) -> None:
    assert _share(error, in_flight=5, calls_per_s=100) <= 0.07  # Five or six calls each second.
    assert _share(InvalidInput("no"), in_flight=5, calls_per_s=100) == 1  # The request is at fault.


def test_failed_calls_to_a_single_server_leave_nothing_behind() -> None:
    replicas = Replicas(1, first=0, probe_first=False)
    for now_s in range(100):
        replicas.failed(replicas.next(now_s), Overloaded("full"), now_s, now_s, is_silent=False)
        replicas.ended(0)
    assert not replicas._penalties


def test_a_replica_that_failed_a_call_takes_turns_again_a_second_later() -> None:
    replicas = _replicas(True, True)
    index = replicas.next(0)
    replicas.failed(index, Overloaded("full"), 0, 0, is_silent=False)
    replicas.ended(index)
    order = []
    for now_s in (0.0, PENALTY_S / 2, PENALTY_S, PENALTY_S):
        order.append(replicas.next(now_s))
        replicas.ended(order[-1])
    assert order == [1, 1, 0, 1]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_a_call_goes_first_to_replicas_that_it_has_not_tried(up: list[bool], data: st.DataObject) -> None:
    tried = data.draw(st.sets(st.integers(0, len(up) - 1)))
    replicas = _replicas(*up)
    untried = {index for index, state in enumerate(up) if state} - tried
    assert replicas.has_others(tried) is bool(untried)
    if untried:
        assert replicas.next(0, tried) in untried


@pytest.mark.parametrize(
    ("outcomes", "ready"),
    [
        ([], False),
        ([Probe.REFUSED], False),
        ([Probe.SILENT], False),
        ([Probe.REFUSED, Probe.SILENT], True),
        ([Probe.SERVING], True),
        ([Probe.REFUSED, Probe.SERVING], True),
    ],
)
def test_calls_may_start_when_one_replica_is_up_or_all_have_been_probed(outcomes: list[Probe], ready: bool) -> None:
    replicas = Replicas(2, first=0, probe_first=True)
    replicas.due(0)
    for index, outcome in enumerate(outcomes):
        replicas.probed(index, outcome, 0)
    assert replicas.ready is ready


def test_a_single_server_takes_calls_before_any_probe() -> None:
    replicas = Replicas(1, first=0, probe_first=False)
    assert replicas.ready
    assert replicas.due(0) == []
    assert not replicas.any_answered


def test_a_replica_that_refuses_a_call_takes_none_until_a_probe_finds_it_serving() -> None:
    replicas = _replicas(True, True)
    assert replicas.refused(0, 5) is Change.DOWN
    assert replicas.refused(0, 5) is None
    assert [replicas.next(5) for _ in range(2)] == [1, 1]
    assert replicas.due(5) == [0]
    assert replicas.probed(0, Probe.SERVING, 6) is Change.UP
    assert [replicas.next(6) for _ in range(4)] == [0, 0, 1, 0]  # Two calls are in flight at replica 1.


def test_a_replica_that_refuses_a_probe_goes_down() -> None:
    replicas = _replicas(True, True)
    assert replicas.suspect(0, 1, 3)
    assert replicas.probed(0, Probe.REFUSED, 3) is Change.DOWN
    assert not replicas.is_silent(0)


def test_an_answer_to_a_call_that_was_sent_before_a_refusal_does_not_bring_the_replica_back() -> None:
    replicas = _replicas(True, True)
    replicas.refused(0, 5)
    assert replicas.answered(0, sent_s=4, now_s=6) is None
    assert replicas.answered(0, sent_s=5.5, now_s=6) is Change.UP


@given(st.lists(st.sampled_from([Probe.REFUSED, Probe.SILENT]), max_size=40))
def test_probes_of_a_replica_that_is_down_go_on_at_most_a_second_apart(outcomes: list[Probe]) -> None:
    replicas = _replicas(True)
    now_s = 1.0
    replicas.refused(0, now_s)
    for outcome in outcomes:
        assert replicas.due(now_s) == [0]
        assert replicas.next_probe_s > now_s + PROBE_TIMEOUT_S  # One probe at a time.
        assert replicas.due(now_s) == []
        replicas.probed(0, outcome, now_s)
        assert 0.1 <= replicas.next_probe_s - now_s <= LONGEST_PAUSE_S
        assert replicas.due(now_s) == []
        now_s = replicas.next_probe_s
    # Growing pauses: ten probes in the first 7 s, then one each second.
    assert now_s >= 1 + 0.1 * len(outcomes)


def test_a_probe_without_an_outcome_is_sent_again_after_its_timeout() -> None:
    replicas = Replicas(2, first=0, probe_first=True)
    assert replicas.due(10) == [0, 1]
    assert replicas.due(10 + PROBE_TIMEOUT_S) == []
    assert 10 + PROBE_TIMEOUT_S < replicas.next_probe_s <= 10 + PROBE_TIMEOUT_S + 1
    assert replicas.due(replicas.next_probe_s) == [0, 1]


def test_a_probe_of_a_silent_replica_without_an_outcome_is_sent_again_after_its_timeout() -> None:
    replicas = _replicas(True, True)
    assert [replicas.suspect(0, 1, now_s) for now_s in (3, 3 + PROBE_TIMEOUT_S, 4 + PROBE_TIMEOUT_S)] == [1, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(Probe)), max_size=60))
def test_silence_never_takes_the_last_replica_that_is_up(events: list[tuple[int, Probe]]) -> None:
    replicas = _replicas(True, True, True)
    for now_s, (index, outcome) in enumerate(events, 1):
        if outcome is not Probe.REFUSED and replicas.suspect(index, now_s, now_s):
            replicas.probed(index, outcome, now_s)
        assert replicas.any_up


@pytest.mark.parametrize(
    ("answered_s", "other_is_up", "suspected"),
    [
        pytest.param(1, True, True, id="another replica is up"),
        pytest.param(3, True, False, id="the replica has answered since the call"),
        pytest.param(1, False, False, id="no other replica is up"),
    ],
)
def test_a_silent_replica_is_probed_if_another_is_up(answered_s: float, other_is_up: bool, suspected: bool) -> None:
    replicas = _replicas(True, other_is_up)
    replicas.answered(0, 0, answered_s)
    assert replicas.suspect(0, sent_s=2, now_s=4) is suspected
    assert not replicas.suspect(0, sent_s=2, now_s=4)  # One probe at a time.


def test_a_suspected_replica_goes_down_only_if_its_probe_gets_no_answer() -> None:
    replicas = _replicas(True, True)
    for outcome, change in ((Probe.SERVING, None), (Probe.SILENT, Change.DOWN), (Probe.SERVING, Change.UP)):
        assert replicas.suspect(0, 1, 3) is (change is not Change.UP)
        assert replicas.probed(0, outcome, 3) is change
        assert replicas.is_silent(0) is (change is Change.DOWN)
    replicas.suspect(0, 4, 5)
    replicas.refused(1, 5)
    assert replicas.probed(0, Probe.SILENT, 6) is None  # The other replica has gone down meanwhile.
