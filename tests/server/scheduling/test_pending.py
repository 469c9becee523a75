"""What waits is found by urgency and by length, whatever was added and removed before."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwaiter_server.scheduling.job import Priority, Sequence
from headwaiter_server.scheduling.pending import Pending
from tests.server.scheduling.sequences import pending_of, waiting


class PendingIsAList(RuleBasedStateMachine):
    """Adds and removes at random, in a list too, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = Pending()
        self.expected: list[Sequence] = []
        self.coming = count()

    @rule(
        length=st.integers(1, 4),
        arrived_s=st.integers(0, 60),
        deadline_s=st.integers(0, 90) | st.just(float("inf")),
        priority=st.sampled_from(Priority),
        work_s=st.floats(0, 1),
    )
    def add(self, length: int, arrived_s: float, deadline_s: float, priority: Priority, work_s: float) -> None:
        index, times = next(self.coming), {"arrived_s": arrived_s, "deadline_s": deadline_s, "work_s": work_s}
        sequence = waiting(length, index, priority=priority, **times)
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
        self.expected.sort(key=lambda sequence: (sequence.due_s, sequence.index))
        assert list(self.pending.by_due()) == self.expected

    @invariant()
    def whose_turn_it_is_comes_first_and_among_equals_the_oldest(self) -> None:
        self.expected.sort(key=lambda sequence: (sequence.turn_s, sequence.index))
        assert list(self.pending.by_turn()) == self.expected

    @invariant()
    def all_are_in_time_if_each_is_behind_those_that_are_due_before(self) -> None:
        for start_s, token_s in ((0.0, 0.5), (10.0, 1.5), (30.0, 0.1)):
            late_s = self._latest_s(start_s, token_s)
            # Times are told apart by steps of 0.1 s.
            if abs(late_s) > 0.1:
                assert self.pending.all_in_time(start_s, token_s) is (late_s < 0)

    def _latest_s(self, start_s: float, token_s: float) -> float:
        """By how much the latest is late."""
        self.expected.sort(key=lambda sequence: (sequence.due_s, sequence.index))
        done_s, late_s = start_s, float("-inf")
        for sequence in self.expected:
            done_s += token_s * sequence.length_tokens
            late_s = max(late_s, done_s - sequence.due_s)
        return late_s

    @invariant()
    def neighbours_in_length_come_nearest_first_and_among_equals_the_oldest(self) -> None:
        for sequence in self.expected:
            length = sequence.length_tokens
            for priority in Priority:
                others = [each for each in self.expected if each.priority is priority and each is not sequence]
                shorter = [each for each in others if each.length_tokens < length]
                longer = [each for each in others if each.length_tokens >= length]
                shorter.sort(key=lambda each: (-each.length_tokens, each.index))
                longer.sort(key=lambda each: (each.length_tokens, each.index))
                assert list(self.pending.shorter(sequence, priority)) == shorter
                assert list(self.pending.longer(sequence, priority)) == longer

    @invariant()
    def tokens_are_known_by_when_they_are_due(self) -> None:
        for time_s in range(0, 100, 7):
            due = sum(each.length_tokens for each in self.expected if each.due_s <= time_s)
            assert self.pending.tokens_due_by(time_s) == due


TestPending = PendingIsAList.TestCase
TestPending.settings = settings(max_examples=50, stateful_step_count=20)


def test_removing_what_does_not_wait_is_a_key_error_and_changes_nothing() -> None:
    present, absent = waiting(2, 0), waiting(2, 1)
    pending = pending_of([present])
    with pytest.raises(KeyError):
        pending.remove(absent)
    assert list(pending.by_due()) == [present]
    assert pending.tokens == 2
