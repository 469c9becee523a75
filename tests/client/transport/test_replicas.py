"""The choice of the replica for the next call."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client.transport.replicas import Replicas


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_replicas_that_are_up_take_turns(up: list[bool], data: st.DataObject) -> None:
    replicas = Replicas(len(up), first=data.draw(st.integers(0, len(up) - 1)))
    for index, state in enumerate(up):
        replicas.record(index, up=state)
    expected = [index for index, state in enumerate(up) if state] or range(len(up))
    assert Counter(replicas.next() for _ in range(3 * len(expected))) == dict.fromkeys(expected, 3)


def test_a_replica_that_comes_back_takes_calls_again() -> None:
    replicas = Replicas(2, first=0)
    replicas.record(0, up=False)
    replicas.record(1, up=True)
    assert [replicas.next() for _ in range(2)] == [1, 1]
    assert replicas.record(0, up=True)
    assert not replicas.record(0, up=True)
    assert sorted(replicas.next() for _ in range(2)) == [0, 1]


@pytest.mark.parametrize(
    ("states", "ready"), [([], False), ([False], False), ([False, False], True), ([True], True), ([False, True], True)]
)
def test_calls_may_start_when_one_replica_is_up_or_all_are_down(states: list[bool], ready: bool) -> None:
    replicas = Replicas(2, first=0)
    for index, up in enumerate(states):
        replicas.record(index, up=up)
    assert replicas.ready is ready
