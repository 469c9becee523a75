"""A batch is led by the right sequence, stays within its limits, and is never slower than several smaller batches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.fair_start import DELAYS_S, Priority
from headwaiter_server.scheduling.planner import BUDGETS_TO_CHOOSE_FROM, REPLY_S, CloseReason, plan
from headwaiter_server.scheduling.queued_request import Sequence
from tests.support.server.sequences import pending_of, waiting, waiting_in

CPU = CostModel(launch_s=3e-3, token_s=1.1e-4, padded_s=2e-6, cell_s=5e-7)
LIMITS = BatchLimits(tokens=512, cells=512 * 256)
NOW_S = 40.0

costs = st.just(CPU) | st.builds(
    CostModel, st.floats(0, 1e-2), st.floats(1e-7, 1e-3), st.floats(0, 1e-4), st.floats(0, 1e-5), st.booleans()
)
limits = st.just(LIMITS) | st.builds(BatchLimits, st.integers(1, 600), st.integers(1, 100_000), st.integers(1, 2000))


@st.composite
def queues(draw: st.DrawFn, first: int = 0) -> list[Sequence]:
    deadlines = st.floats(0, 2 * NOW_S) | st.floats(NOW_S, NOW_S + 0.1) | st.just(float("inf"))
    times = st.tuples(st.floats(0, NOW_S), deadlines)
    lengths = st.integers(1, 3) | st.integers(1, 300)
    rows = draw(st.lists(st.tuples(lengths, times, st.sampled_from(Priority)), max_size=40))
    return [
        waiting(length, order, arrived_s=arrived_s, deadline_s=deadline_s, priority=priority)
        for order, (length, (arrived_s, deadline_s), priority) in enumerate(rows, first)
    ]


def _seconds(lengths: list[int], cost: CostModel) -> float:
    return cost.seconds(len(lengths), sum(lengths), max(lengths), sum(length**2 for length in lengths))


def _too_late(sequence: Sequence, cost: CostModel, *, idle: bool = False) -> bool:
    needed_s = 0.0 if idle else _seconds([sequence.length_tokens], cost) + REPLY_S
    return sequence.deadline_s <= NOW_S + needed_s


def _order(sequence: Sequence) -> tuple[float, Priority, int]:
    return sequence.fair_start_s, sequence.priority, sequence.index


def _lengths(batch: tuple[Sequence, ...]) -> list[int]:
    return sorted(sequence.length_tokens for sequence in batch)


@given(queue=queues(), cost=costs, limits=limits)
def test_a_batch_of_several_sequences_stays_within_the_limits(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    lengths = _lengths(plan(pending_of(queue), NOW_S, cost, limits).batch)
    if len(lengths) > 1:
        assert sum(lengths) <= limits.tokens
        assert len(lengths) * max(lengths) ** 2 <= limits.cells
        assert len(lengths) * max(lengths) <= limits.padded_tokens


@given(queue=queues(), cost=costs, limits=limits)
def test_sequences_of_other_lengths_or_all_others_stay_out_if_they_would_change_results(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    one_length = plan(pending_of(queue), NOW_S, cost, replace(limits, one_length=True)).batch
    assert len(set(_lengths(one_length))) <= 1
    assert len(plan(pending_of(queue), NOW_S, cost, replace(limits, sequences=1)).batch) <= 1
    # A queue of one length has the same batches with and without the rule.
    same = [each for each in queue if each.length_tokens == queue[0].length_tokens]
    free = plan(pending_of(same), NOW_S, cost, limits).batch
    assert plan(pending_of(same), NOW_S, cost, replace(limits, one_length=True)).batch == free


@given(queue=queues(), cost=costs, limits=limits)
def test_the_leader_has_the_earliest_fair_start(queue: list[Sequence], cost: CostModel, limits: BatchLimits) -> None:
    alive = [sequence for sequence in queue if not _too_late(sequence, cost)]
    batch = plan(pending_of(queue), NOW_S, cost, limits).batch
    assert batch[:1] == tuple(sorted(alive, key=_order)[:1])


@given(queue=queues(), cost=costs, limits=limits)
def test_a_sequence_joins_only_if_it_is_among_the_oldest_ones_of_its_priority(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    for sequence in plan(pending_of(queue), NOW_S, cost, limits).batch:
        same = [each for each in queue if each.priority is sequence.priority and not _too_late(each, cost)]
        older = [each for each in same if _order(each) < _order(sequence)]
        older_tokens = sum(min(each.length_tokens, limits.tokens) for each in older)
        assert older_tokens < BUDGETS_TO_CHOOSE_FROM * limits.tokens


# 1.5 budgets are 768 tokens. A sequence longer than a budget counts as one budget, because it cannot join.
@pytest.mark.parametrize(
    ("older", "joins"), [([60] * 12, True), ([60] * 13, False), ([800], True), ([800, 800], False)]
)
def test_among_the_oldest_sequences_one_that_needs_no_padding_joins_first(older: list[int], joins: bool) -> None:
    queue = [waiting(length, order) for order, length in enumerate([30, *older, 30])]
    batch = plan(pending_of(queue), NOW_S, CPU, LIMITS).batch
    assert (queue[-1] in batch[1:2]) == joins


def test_an_interactive_sequence_joins_before_bulk_ones_that_are_due_earlier() -> None:
    bulk = [waiting(30, order, priority=Priority.BULK) for order in range(200)]
    interactive = waiting(30, 200, arrived_s=NOW_S)
    batch = plan(pending_of([*bulk, interactive]), NOW_S, CPU, LIMITS).batch
    assert batch[:3] == (bulk[0], interactive, bulk[1])


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[float, float, Sequence]]:
    """Draw sequences, with the arrival and the own work of each."""
    rows = draw(st.lists(st.tuples(st.floats(0, NOW_S), st.integers(1, 300), st.floats(0, 2)), max_size=30))
    return [
        (
            arrived_s,
            work_s,
            waiting(length, order, arrived_s=arrived_s, own_work_s=work_s, priority=draw(st.sampled_from(Priority))),
        )
        for order, (arrived_s, length, work_s) in enumerate(rows)
    ]


@given(arrived=arrivals(), cost=costs, limits=limits)
def test_no_sequence_leads_a_batch_before_one_whose_fair_start_was_earlier_than_its_arrival(
    arrived: list[tuple[float, float, Sequence]], cost: CostModel, limits: BatchLimits
) -> None:
    arrival_s = {sequence: arrived_s for arrived_s, _, sequence in arrived}
    work_s = {sequence: seconds for _, seconds, sequence in arrived}
    pending = pending_of(list(arrival_s))
    while pending:
        batch = plan(pending, NOW_S, cost, limits).batch
        for other in waiting_in(pending):
            delay_s = DELAYS_S[other.priority]
            assert arrival_s[batch[0]] <= arrival_s[other] + 4 * work_s[other] + delay_s
        for sequence in batch:
            pending.remove(sequence)


@pytest.mark.parametrize(
    ("arrived_s", "deadline_s", "now_s", "leads"),
    [
        (0.9, float("inf"), 1.2, True),
        (1.1, float("inf"), 1.2, False),
        (0.9, 0.96, 0.8, True),
        (0.9, 0.92, 0.8, False),
    ],
)
def test_a_small_request_overtakes_a_large_one_until_four_times_its_own_work_or_shortly_before_its_deadline(
    arrived_s: float, deadline_s: float, now_s: float, leads: bool
) -> None:
    large = waiting(300, 0, deadline_s=deadline_s, own_work_s=0.26)
    small = waiting(3, 1, arrived_s=arrived_s, own_work_s=0.01)
    assert (plan(pending_of([large, small]), now_s, CPU, LIMITS).batch[0] is small) is leads


@given(queue=queues(), cost=costs, limits=limits, idle=st.booleans())
def test_a_sequence_that_cannot_be_answered_in_time_is_dropped_and_never_runs(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits, idle: bool
) -> None:
    planned = plan(pending_of(queue), NOW_S, cost, limits, idle=idle)
    assert not any(_too_late(sequence, cost, idle=idle) for sequence in planned.batch)
    assert all(_too_late(sequence, cost, idle=idle) for sequence in planned.expired)
    if not planned.batch:
        assert set(planned.expired) == set(queue)


@given(queue=queues(), cost=costs, limits=limits)
def test_no_sequence_misses_its_deadline_because_others_joined_its_batch(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    planned = plan(pending_of(queue), NOW_S, cost, limits)
    if len(planned.batch) > 1:
        assert NOW_S + planned.seconds + REPLY_S <= min(sequence.deadline_s for sequence in planned.batch) * (1 + 1e-9)
    if planned.batch:
        assert planned.seconds == pytest.approx(_seconds(_lengths(planned.batch), cost))


def test_the_deadline_of_a_sequence_that_has_joined_keeps_others_out() -> None:
    # Two sequences take a little over 3 ms + 20 · 0.11 ms, and a third one 1.2 ms more. A reply takes 10 ms.
    queue = [waiting(10, 0), waiting(10, 1, deadline_s=NOW_S + 16e-3), waiting(10, 2)]
    planned = plan(pending_of(queue), NOW_S, CPU, LIMITS)
    assert planned.batch == tuple(queue[:2])
    assert planned.close_reason is CloseReason.URGENT


@given(queue=queues(), cost=costs)
def test_bulk_sequences_join_after_interactive_ones(queue: list[Sequence], cost: CostModel) -> None:
    batch = plan(pending_of(queue), NOW_S, cost, LIMITS).batch
    joined = [sequence.priority for sequence in batch[1:]]
    assert joined == sorted(joined)


@given(queue=queues(), cost=costs, limits=limits)
def test_repeated_planning_chooses_or_drops_each_sequence_once(
    queue: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    pending = pending_of(queue)
    served: list[Sequence] = []
    while pending:
        planned = plan(pending, NOW_S, cost, limits)
        taken = planned.batch + planned.expired
        assert taken
        for sequence in taken:
            pending.remove(sequence)
        served += taken
    assert sorted(sequence.index for sequence in served) == list(range(len(queue)))


@given(queue=queues(), gone=queues(first=1000), cost=costs, limits=limits)
def test_a_plan_depends_only_on_the_waiting_sequences_and_leaves_them_in_place(
    queue: list[Sequence], gone: list[Sequence], cost: CostModel, limits: BatchLimits
) -> None:
    pending = pending_of(queue)
    before = waiting_in(pending)

    planned = plan(pending, NOW_S, cost, limits)

    assert waiting_in(pending) == before
    assert pending.tokens == sum(sequence.length_tokens for sequence in queue)
    others = pending_of([*gone, *queue])
    for sequence in gone:
        others.remove(sequence)
    assert plan(others, NOW_S, cost, limits).batch == planned.batch


@given(lengths=st.lists(st.sampled_from([1, 2, 5, 20, 40, 60, 80, 200])), leader=st.integers(1, 300), cost=costs)
def test_no_split_of_a_batch_in_two_would_be_faster(lengths: list[int], leader: int, cost: CostModel) -> None:
    queue = [waiting(length, order) for order, length in enumerate([leader, *lengths])]
    lengths = _lengths(plan(pending_of(queue), NOW_S, cost, LIMITS).batch)
    for cut in range(1, len(lengths)):
        apart_s = _seconds(lengths[:cut], cost) + _seconds(lengths[cut:], cost)
        assert _seconds(lengths, cost) <= apart_s * (1 + 1e-9)


@pytest.mark.parametrize("long", [40, 60, 77, 200])
def test_a_long_sequence_and_many_short_ones_cost_at_most_one_extra_launch(long: int) -> None:
    queue = [waiting(long, 0)] + [waiting(1, order) for order in range(1, 151)]
    pending = pending_of(queue)
    taken_s = 0.0
    while pending:
        batch = plan(pending, NOW_S, CPU, LIMITS).batch
        taken_s += _seconds(_lengths(batch), CPU)
        for sequence in batch:
            pending.remove(sequence)
    assert taken_s <= _seconds([long], CPU) + _seconds([1] * 150, CPU) + CPU.launch_s


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (BatchLimits(tokens=40, cells=10**6), 4),
        (BatchLimits(tokens=49, cells=10**6), 4),
        (BatchLimits(tokens=10**6, cells=700), 7),
        (BatchLimits(tokens=10**6, cells=799), 7),
        (BatchLimits(tokens=10**6, cells=10**6, padded_tokens=59), 5),
        (BatchLimits(tokens=10**6, cells=10**6, sequences=6), 6),
        # The device computes 16 tokens of each sequence.
        (BatchLimits(tokens=10**6, cells=10**6, padded_tokens=79, length_step=16), 4),
        (BatchLimits(tokens=10**6, cells=1279, length_step=16), 4),
    ],
)
def test_a_batch_of_equal_lengths_is_filled_up_to_its_limit(limits: BatchLimits, most: int) -> None:
    queue = [waiting(10, order) for order in range(20)]
    assert plan(pending_of(queue), NOW_S, CPU, limits).batch == tuple(queue[:1] + queue[1:most])


@pytest.mark.parametrize(
    ("lengths", "deadline_s", "limits", "close_reason"),
    [
        ([], float("inf"), LIMITS, CloseReason.DRAINED),
        ([10] * 3, float("inf"), LIMITS, CloseReason.DRAINED),
        ([10] * 3, float("inf"), BatchLimits(tokens=20, cells=10**6), CloseReason.BUDGET),
        ([10] * 3, float("inf"), BatchLimits(tokens=512, cells=250), CloseReason.CELLS),
        ([10, 300], float("inf"), LIMITS, CloseReason.CELLS),
        # Two sequences take a little over 3 ms + 20 · 0.11 ms, one takes 1.1 ms less. A reply takes 10 ms.
        ([10] * 3, NOW_S + 15e-3, LIMITS, CloseReason.URGENT),
    ],
)
def test_a_plan_says_why_its_batch_is_not_larger(
    lengths: list[int], deadline_s: float, limits: BatchLimits, close_reason: CloseReason
) -> None:
    queue = [waiting(length, order, deadline_s=deadline_s) for order, length in enumerate(lengths)]
    planned = plan(pending_of(queue), NOW_S, CPU, limits)
    assert planned.close_reason is close_reason
    assert (planned.batch == tuple(queue)) is (close_reason is CloseReason.DRAINED)


def test_with_a_variable_length_kernel_all_lengths_share_a_batch() -> None:
    cost = CostModel(launch_s=1e-4, token_s=1e-6, padded_s=0.0, cell_s=1e-9, variable_length=True)
    queue = [waiting(200, 0)] + [waiting(1, order) for order in range(1, 151)]
    assert len(plan(pending_of(queue), NOW_S, cost, BatchLimits(16_384, 1 << 30)).batch) == 151


def test_bulk_work_leads_before_interactive_work_that_arrives_20_s_later() -> None:
    bulk = waiting(10, 0, arrived_s=0.0, priority=Priority.BULK)
    for arrived_s, leads in ((19.0, False), (21.0, True)):
        interactive = waiting(10, 1, arrived_s=arrived_s)
        assert (plan(pending_of([bulk, interactive]), NOW_S, CPU, LIMITS).batch[0] is bulk) is leads


@pytest.mark.parametrize(
    ("hidden_row_s", "hidden", "batch"),
    [
        # Copies are cheap: all sequences share a batch, those of the leader's kind first.
        (1e-6, [True, False, False, True], [0, 3, 1, 2]),
        (0.0, [False, True, False, True], [0, 2, 1, 3]),
        # A copy of 10 rows costs half a launch: one other sequence may join.
        (1.5e-4, [True, False, False, True], [0, 3, 1, 2]),
        (1.6e-4, [True, False, False, True], [0, 3, 1]),
        (3.1e-4, [True, False, False, True], [0, 3]),
        # The rows of the leader would be copied without need.
        (3.1e-4, [False, False, False, True], [0, 1, 2]),
        # No rows are wasted.
        (1.0, [True, True, True, True], [0, 1, 2, 3]),
    ],
)
def test_sequences_with_hidden_rows_share_a_batch_with_others_only_if_that_costs_less_than_a_launch(
    hidden_row_s: float, hidden: list[bool], batch: list[int]
) -> None:
    cost = CostModel(launch_s=3e-3, token_s=1e-4, padded_s=0.0, cell_s=0.0, hidden_row_s=hidden_row_s)
    queue = [waiting(10, index, arrived_s=index * 1e-3, hidden=each) for index, each in enumerate(hidden)]
    planned = plan(pending_of(queue), NOW_S, cost, LIMITS)
    assert [sequence.index for sequence in planned.batch] == batch
    rows = 10 * len(batch) if any(hidden[index] for index in batch) else 0
    assert planned.seconds == pytest.approx(3e-3 + 1e-3 * len(batch) + hidden_row_s * rows)
