"""The choice of the replica for the next call, and of the replicas to probe."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S, Change, Probe, Replicas

# Probes of a replica that stays away are at most this far apart.
LONGEST_PAUSE_S = 1.0
# A replica is put aside for at most this long.
LONGEST_ASIDE_S = 30.0


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
    assert Counter(replicas.next() for _ in range(3 * len(expected))) == dict.fromkeys(expected, 3)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_a_call_goes_first_to_replicas_that_it_has_not_tried(up: list[bool], data: st.DataObject) -> None:
    tried = data.draw(st.sets(st.integers(0, len(up) - 1)))
    replicas = _replicas(*up)
    untried = {index for index, state in enumerate(up) if state} - tried
    assert replicas.has_others(tried) is bool(untried)
    if untried:
        assert replicas.next(tried) in untried


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
    assert [replicas.next() for _ in range(2)] == [1, 1]
    assert replicas.due(5) == [0]
    assert replicas.probed(0, Probe.SERVING, 6) is Change.UP
    assert sorted(replicas.next() for _ in range(2)) == [0, 1]


def test_a_replica_that_refuses_a_probe_goes_down() -> None:
    replicas = _replicas(True, True)
    replicas.answered(1, 1, 2)
    assert replicas.suspect(0, 1, 3)
    assert replicas.probed(0, Probe.REFUSED, 3) is Change.DOWN


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
    replicas.answered(1, 1, 2)
    assert [replicas.suspect(0, 1, now_s) for now_s in (3, 3 + PROBE_TIMEOUT_S, 4 + PROBE_TIMEOUT_S)] == [1, 0, 1]


def _silence(replicas: Replicas, calls: int, now_s: float) -> list[Change | None]:
    """Let calls to replica 0 time out, while replica 1 answers."""
    replicas.answered(1, now_s - 1, now_s)
    return [replicas.silent(0, now_s) for _ in range(calls)]


def test_a_replica_whose_calls_time_out_while_others_answer_is_put_aside_after_three() -> None:
    replicas = _replicas(True, True)
    assert _silence(replicas, 3, 5) == [None, None, Change.ASIDE]
    assert replicas.is_aside(0)
    assert [replicas.next() for _ in range(2)] == [1, 1]


def test_an_answer_between_timeouts_keeps_a_replica() -> None:
    replicas = _replicas(True, True)
    _silence(replicas, 2, 5)
    replicas.answered(0, 5, 6)
    assert _silence(replicas, 2, 7) == [None, None]


def test_a_replica_is_not_put_aside_while_no_replica_answers() -> None:
    replicas = _replicas(True, True)
    assert [replicas.silent(index, 5) for _ in range(9) for index in range(2)] == [None] * 18


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["answered", "silent", "suspect"])), max_size=60))
def test_the_last_replica_is_never_put_aside(events: list[tuple[int, str]]) -> None:
    replicas = _replicas(True, True, True)
    for now_s, (index, event) in enumerate(events, 1):
        if event == "answered":
            replicas.answered(index, now_s - 0.5, now_s)
        elif event == "silent":
            replicas.silent(index, now_s)
        elif replicas.suspect(index, now_s, now_s):
            replicas.probed(index, Probe.SILENT, now_s)
        assert replicas.any_up


def test_a_replica_that_is_put_aside_again_and_again_stays_aside_longer_each_time() -> None:
    replicas = _replicas(True, True)
    pauses_s, now_s = [], 10.0
    for _ in range(8):
        assert _silence(replicas, 3, now_s)[-1] is Change.ASIDE
        pauses_s.append(replicas.next_probe_s - now_s)
        now_s = replicas.next_probe_s
        assert replicas.due(now_s) == [0]
        assert replicas.probed(0, Probe.SERVING, now_s) is Change.UP
        assert not replicas.is_aside(0)
        now_s += 1
    assert pauses_s == [1, 2, 4, 8, 16, LONGEST_ASIDE_S, LONGEST_ASIDE_S, LONGEST_ASIDE_S]
    replicas.answered(0, now_s, now_s)
    _silence(replicas, 3, now_s + 1)
    assert replicas.next_probe_s == now_s + 1 + pauses_s[0]


def test_replicas_that_are_aside_are_probed_when_the_last_other_one_goes_down() -> None:
    replicas = _replicas(True, True)
    for now_s in (10.0, 20.0, 40.0):
        _silence(replicas, 3, now_s)
        replicas.due(now_s + LONGEST_ASIDE_S)
        replicas.probed(0, Probe.SERVING, now_s + 5)
    _silence(replicas, 3, 100)
    assert replicas.next_probe_s > 105
    replicas.refused(1, 101)
    assert replicas.due(101.1) == [0, 1]


@pytest.mark.parametrize(
    ("answered_s", "other_answered_s", "suspected"),
    [
        pytest.param(1, 3, True, id="others answer"),
        pytest.param(3, 4, False, id="the replica has answered since the call"),
        pytest.param(1, 0.5, False, id="no other replica answers"),
    ],
)
def test_a_silent_replica_is_probed_if_others_answer(
    answered_s: float, other_answered_s: float, suspected: bool
) -> None:
    replicas = _replicas(True, True)
    replicas.answered(0, 0, answered_s)
    replicas.answered(1, 0, other_answered_s)
    assert replicas.suspect(0, sent_s=2, now_s=4) is suspected
    assert not replicas.suspect(0, sent_s=2, now_s=4)  # One probe at a time.


def test_a_suspected_replica_is_put_aside_only_if_its_probe_gets_no_answer() -> None:
    replicas = _replicas(True, True)
    replicas.answered(1, 1, 2)
    for outcome, change in ((Probe.SERVING, None), (Probe.SILENT, Change.ASIDE)):
        assert replicas.suspect(0, 1, 3)
        assert replicas.probed(0, outcome, 3) is change
