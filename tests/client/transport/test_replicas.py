"""Which replica takes the next call."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client.transport.replicas import Replicas


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_replicas_that_are_up_take_turns(up: list[bool], data: st.DataObject) -> None:
    replicas = Replicas(len(up), first=data.draw(st.integers(0, len(up) - 1)))
    for index, state in enumerate(up):
        replicas.mark(index, up=state)
    expected = [index for index, state in enumerate(up) if state] or range(len(up))
    assert Counter(replicas.next() for _ in range(3 * len(expected))) == dict.fromkeys(expected, 3)


def test_one_that_comes_back_has_its_turn_again() -> None:
    replicas = Replicas(2, first=0)
    replicas.mark(0, up=False)
    replicas.mark(1, up=True)
    assert [replicas.next() for _ in range(2)] == [1, 1]
    assert replicas.mark(0, up=True)
    assert not replicas.mark(0, up=True)
    assert sorted(replicas.next() for _ in range(2)) == [0, 1]


@pytest.mark.parametrize(
    ("seen", "known"), [([], False), ([False], False), ([False, False], True), ([True], True), ([False, True], True)]
)
def test_calls_may_start_once_one_is_up_or_all_are_down(seen: list[bool], known: bool) -> None:
    replicas = Replicas(2, first=0)
    for index, up in enumerate(seen):
        replicas.mark(index, up=up)
    assert replicas.known is known
