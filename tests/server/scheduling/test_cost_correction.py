"""What batches took corrects what they are expected to take, and a few odd ones do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import CostModel, Shape
from headwaiter_server.scheduling.cost_correction import Expectations, Margin, Pace

COST = CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.0)
BUDGET_TOKENS = 8
UNEVEN = Shape.of([4, 2])
# A launch, six tokens, and two rows of four.
UNEVEN_S, UNEVEN_PADDING_S = 1 + 3 + 2, 0.5
A_MAJORITY = 16


@pytest.fixture
def expected() -> Expectations:
    return Expectations(COST, BUDGET_TOKENS)


def test_before_the_first_batch_all_takes_what_was_measured(expected: Expectations) -> None:
    assert expected.cost.seconds(*UNEVEN) == expected.queue_cost.seconds(*UNEVEN) == UNEVEN_S
    assert expected.work_s(UNEVEN) == UNEVEN_S - UNEVEN_PADDING_S


def test_batches_that_take_three_times_as_long_are_expected_to_and_tell_what_was_expected_of_them(
    expected: Expectations,
) -> None:
    told_s = [expected.ran(UNEVEN, 3 * UNEVEN_S) for _ in range(A_MAJORITY + 1)]
    assert told_s == [UNEVEN_S] * A_MAJORITY + [3 * UNEVEN_S]
    assert expected.cost.seconds(*UNEVEN) == 3 * UNEVEN_S
    assert expected.work_s(UNEVEN) == 3 * (UNEVEN_S - UNEVEN_PADDING_S)
    # A queue moves as slowly as batches leave it, whatever they take by themselves.
    assert expected.queue_cost == COST


@pytest.mark.parametrize(
    ("last", "undisturbed_s"),
    [
        # A launch, twelve tokens, three rows of four.
        (True, 1 + 6 + 3),
        # Two of these sequences fill a batch: what takes a launch, eight tokens and two rows of four for eight tokens.
        (False, (1 + 4 + 2) * 12 / 8),
    ],
)
def test_a_queue_moves_as_full_batches_would_but_for_the_last_one(
    expected: Expectations, last: bool, undisturbed_s: float
) -> None:
    for _ in range(A_MAJORITY):
        expected.left_queue(Shape.of([4, 4, 4]), 2 * undisturbed_s, last=last)
    assert expected.queue_cost.seconds(*UNEVEN) == pytest.approx(2 * UNEVEN_S)
    assert expected.cost == COST


def test_a_margin_grows_with_answers_that_come_late(expected: Expectations) -> None:
    before_s = expected.margin_s
    for _ in range(A_MAJORITY):
        expected.answered(2.0)
    assert expected.margin_s == pytest.approx(before_s + 2.0)


def test_who_is_doubted_often_enough_is_believed_no_more(expected: Expectations) -> None:
    for _ in range(A_MAJORITY):
        expected.ran(UNEVEN, 100 * UNEVEN_S)
    assert expected.cost.seconds(*UNEVEN) == 100 * UNEVEN_S
    for _ in range(A_MAJORITY):
        expected.doubt()
    assert expected.cost == COST


def _pace(*ratios: float) -> Pace:
    pace = Pace()
    for ratio in ratios:
        pace.learn(0.02, 0.02 * ratio)
    return pace


@pytest.mark.parametrize(
    ("ratios", "factor"),
    [
        ([], 1.0),
        ([50.0], 1.0),
        ([2.0] * 15, 1.0),
        ([2.0] * 16, 2.0),
        ([2.0] * 40 + [50.0], 2.0),
        ([2.0] * 40 + [1.0] * 16, 1.0),
        ([0.5] * 31, 0.5),
    ],
)
def test_a_hiccup_changes_nothing_and_a_slower_machine_is_believed_after_sixteen_batches(
    ratios: list[float], factor: float
) -> None:
    assert _pace(*ratios).factor == pytest.approx(factor)


@given(
    steady=st.floats(0.1, 10.0),
    ratios=st.lists(st.floats(1e-3, 1e3), min_size=15, max_size=15),
    places=st.lists(st.integers(0, 30), min_size=15, max_size=15, unique=True),
)
def test_whatever_a_minority_of_batches_took_the_pace_is_that_of_the_others(
    steady: float, ratios: list[float], places: list[int]
) -> None:
    disturbed = dict(zip(places, ratios, strict=True))
    assert _pace(*(disturbed.get(place, steady) for place in range(31))).factor == pytest.approx(steady)


def test_batches_that_took_no_time_on_a_coarse_clock_say_nothing() -> None:
    assert _pace(*[0.0] * 31).factor == 1


@pytest.mark.parametrize(
    ("late_s", "margin_s"),
    [
        ([], 0.005),
        # Of the 31 latest, three count for nothing, and what is early allows for no less than the reply takes.
        ([9.0] * 3, 0.005),
        ([9.0] * 3 + [0.02], 0.025),
        ([-1.0] * 31, 0.005),
        ([9.0] * 4 + [0.0] * 30, 0.005),
    ],
)
def test_the_margin_is_what_nine_of_ten_answers_keep(late_s: list[float], margin_s: float) -> None:
    margin = Margin()
    for one in late_s:
        margin.learn(one)
    assert margin.seconds == pytest.approx(margin_s)
