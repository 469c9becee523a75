"""What waits is found by urgency and by length, whatever was added and removed before."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwaiter_server.batching.job import Priority, Sequence
from headwaiter_server.batching.pending import Pending
from tests.server.batching.sequences import pending_of, waiting


class PendingIsAList(RuleBasedStateMachine):
    """Adds and removes at random, in a list too, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = Pending()
        self.expected: list[Sequence] = []
        self.order = count()

    @rule(
        length=st.integers(1, 4),
        arrived_s=st.integers(0, 60),
        deadline_s=st.integers(0, 90) | st.just(float("inf")),
        priority=st.sampled_from(Priority),
    )
    def add(self, length: int, arrived_s: float, deadline_s: float, priority: Priority) -> None:
        order = next(self.order)
        sequence = waiting(length, order, arrived_s=arrived_s, deadline_s=deadline_s, priority=priority)
        self.pending.add(sequence)
        self.expected.append(sequence)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.expected:
            place = data.draw(st.integers(0, len(self.expected) - 1))
            self.pending.remove(self.expected.pop(place))

    @invariant()
    def sizes_agree(self) -> None:
        assert len(self.pending) == len(self.expected)
        assert bool(self.pending) == bool(self.expected)
        assert self.pending.tokens == sum(len(sequence.values) for sequence in self.expected)

    @invariant()
    def the_most_urgent_comes_first_and_among_equals_the_oldest(self) -> None:
        self.expected.sort(key=lambda sequence: (sequence.due_s, sequence.order))
        assert list(self.pending.by_urgency()) == self.expected

    @invariant()
    def neighbours_in_length_come_nearest_first_and_among_equals_the_oldest(self) -> None:
        for sequence in self.expected:
            length = sequence.length_tokens
            for priority in Priority:
                others = [each for each in self.expected if each.priority is priority and each is not sequence]
                shorter = [each for each in others if each.length_tokens < length]
                longer = [each for each in others if each.length_tokens >= length]
                shorter.sort(key=lambda each: (-each.length_tokens, each.order))
                longer.sort(key=lambda each: (each.length_tokens, each.order))
                assert list(self.pending.shorter(sequence, priority)) == shorter
                assert list(self.pending.longer(sequence, priority)) == longer

    @invariant()
    def tokens_are_known_by_when_they_are_due(self) -> None:
        for time_s in range(0, 100, 7):
            due = sum(each.length_tokens for each in self.expected if each.due_s <= time_s)
            assert self.pending.tokens_due_by(time_s) == due


TestPending = PendingIsAList.TestCase
TestPending.settings = settings(max_examples=50, stateful_step_count=20)


def test_removing_what_does_not_wait_is_a_value_error_and_changes_nothing() -> None:
    present, absent = waiting(2, 0), waiting(2, 1)
    pending = pending_of([present])
    with pytest.raises(ValueError, match="not in list"):
        pending.remove(absent)
    assert list(pending.by_urgency()) == [present]
    assert pending.tokens == 2
