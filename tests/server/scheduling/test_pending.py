"""Waiting sequences are found by fair start after any additions and removals."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Sequence
from tests.support.server.sequences import waiting, waiting_in


class PendingBehavesLikeAList(RuleBasedStateMachine):
    """Add and remove sequences at random, and compare the queue to a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = Pending()
        self.expected: list[Sequence] = []
        self.indices = count()

    @rule(
        length=st.integers(1, 4),
        arrived_s=st.integers(0, 60),
        deadline_s=st.integers(0, 90) | st.just(float("inf")),
        priority=st.sampled_from(Priority),
        own_work_s=st.floats(0, 1),
        hidden=st.booleans(),
    )
    def add(
        self, length: int, arrived_s: float, deadline_s: float, priority: Priority, own_work_s: float, hidden: bool
    ) -> None:
        sequence = waiting(
            length,
            next(self.indices),
            arrived_s=arrived_s,
            deadline_s=deadline_s,
            priority=priority,
            own_work_s=own_work_s,
            hidden=hidden,
        )
        self.pending.add(sequence)
        self.expected.append(sequence)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.expected:
            index = data.draw(st.integers(0, len(self.expected) - 1))
            self.pending.remove(self.expected.pop(index))

    @invariant()
    def the_number_of_sequences_and_tokens_is_right(self) -> None:
        assert len(self.pending) == len(self.expected)
        assert bool(self.pending) == bool(self.expected)
        assert self.pending.tokens == sum(len(sequence.values) for sequence in self.expected)
        assert self.pending.hidden_tokens == sum(each.length_tokens for each in self.expected if each.hidden)

    @invariant()
    def sequences_are_in_the_order_of_their_fair_starts_then_of_their_age(self) -> None:
        self.expected.sort(key=lambda sequence: (sequence.fair_start_s, sequence.priority, sequence.index))
        assert waiting_in(self.pending) == self.expected
        priorities = [{sequence.priority for sequence in alike} for alike in self.pending.in_turn()]
        assert priorities == [{each} for each in sorted({sequence.priority for sequence in self.expected})]

    @invariant()
    def the_leader_is_the_first(self) -> None:
        assert self.pending.leader is next(iter(self.expected), None)

    @invariant()
    def tokens_before_counts_tokens_in_steps(self) -> None:
        for time_s in range(0, 100, 7):
            step_end_s = (time_s // 0.1 + 1) * 0.1
            certain = sum(each.length_tokens for each in self.expected if each.fair_start_s <= time_s)
            possible = sum(each.length_tokens for each in self.expected if each.fair_start_s <= step_end_s)
            assert certain <= self.pending.tokens_before(time_s) <= possible


TestPending = PendingBehavesLikeAList.TestCase
TestPending.settings = settings(max_examples=50, stateful_step_count=20)
