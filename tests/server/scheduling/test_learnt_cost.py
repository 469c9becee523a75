"""Predicted times follow the batches that run: soon in their scale, later in their terms; outliers do not count."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from statistics import median
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter_server.scheduling import cost
from headwaiter_server.scheduling.cost import CostModel, LearntCost, Shape

COST = CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.0)
UNEVEN = Shape.of([4, 2])
# A launch, 6 tokens, and 2 × 4 padded tokens.
UNEVEN_S, UNEVEN_PADDING_S = 1 + 3 + 2, 0.5
A_MAJORITY = 16


def test_after_a_majority_of_slow_batches_slow_batches_are_predicted() -> None:
    learnt = LearntCost(COST)
    assert learnt.own_work_s(UNEVEN) == UNEVEN_S - UNEVEN_PADDING_S
    predicted_s = [learnt.note_batch(UNEVEN, 3 * UNEVEN_S) for _ in range(A_MAJORITY + 1)]
    assert predicted_s == [UNEVEN_S] * A_MAJORITY + [3 * UNEVEN_S]
    assert learnt.cost.seconds(*UNEVEN) == 3 * UNEVEN_S
    assert learnt.own_work_s(UNEVEN) == 3 * (UNEVEN_S - UNEVEN_PADDING_S)


def _ratio_after(*ratios: float) -> float:
    """Return the ratio after batches that took these multiples of their predicted times."""
    learnt = LearntCost(COST)
    for ratio in ratios:
        learnt.note_batch(UNEVEN, ratio * UNEVEN_S)
    return learnt.ratio


@pytest.mark.parametrize(
    ("ratios", "median"),
    [
        ([], 1.0),
        ([50.0], 1.0),
        ([2.0] * 15, 1.0),
        ([2.0] * 16, 2.0),
        ([2.0] * 40 + [50.0], 2.0),
        ([2.0] * 40 + [1.0] * 16, 1.0),
        ([0.5] * 31, 0.5),
        # A coarse clock measures no time.
        ([0.0] * 31, 1.0),
    ],
)
def test_one_slow_batch_changes_nothing_and_sixteen_slow_batches_change_the_ratio(
    ratios: list[float], median: float
) -> None:
    assert _ratio_after(*ratios) == pytest.approx(median)


@given(
    steady=st.floats(0.1, 10.0),
    ratios=st.lists(st.floats(1e-3, 1e3), min_size=15, max_size=15),
    positions=st.lists(st.integers(0, 30), min_size=15, max_size=15, unique=True),
)
def test_a_minority_of_batches_does_not_change_the_ratio(
    steady: float, ratios: list[float], positions: list[int]
) -> None:
    disturbed = dict(zip(positions, ratios, strict=True))
    assert _ratio_after(*(disturbed.get(position, steady) for position in range(31))) == pytest.approx(steady)


# What a disturbed start measured, and what is true.
DISTURBED = CostModel(launch_s=2.0e-3, token_s=3.1e-4, padded_s=4.0e-5, cell_s=0.0)
TRUE = CostModel(launch_s=1.6e-3, token_s=1.05e-4, padded_s=3.3e-6, cell_s=7e-8)


def batches(count: int, seed: int) -> Iterator[Shape]:
    """Yield the shapes of batches of texts of various lengths, with little padding, as a stingy planner makes them."""
    random = Random(seed)
    for _ in range(count):
        longest = random.randint(4, 60)
        yield Shape.of([random.randint(max(1, longest * 3 // 4), longest) for _ in range(random.randint(1, 16))])


@pytest.mark.parametrize("seed", range(5))
def test_within_200_batches_the_terms_recover_from_a_start_that_was_disturbed(seed: int) -> None:
    learnt, random = LearntCost(DISTURBED), Random(seed)
    for shape in batches(200, seed):
        learnt.note_batch(shape, TRUE.seconds(*shape) * random.gauss(1.0, 0.03))
    # The planner compares the cost of padding with that of a launch.
    assert learnt.cost.launch_s == pytest.approx(TRUE.launch_s, rel=0.25)
    assert learnt.cost.padded_s / learnt.cost.launch_s < DISTURBED.padded_s / DISTURBED.launch_s / 2
    errors = [abs(learnt.cost.seconds(*shape) / TRUE.seconds(*shape) - 1) for shape in batches(100, seed + 100)]
    assert median(errors) < 0.03


def test_what_the_batches_leave_open_stays_as_it_was() -> None:
    learnt = LearntCost(TRUE)
    alone = Shape.of([12])
    for _ in range(500):
        learnt.note_batch(alone, 2 * TRUE.seconds(*alone))
    for shape in batches(100, 0):
        assert learnt.cost.seconds(*shape) == pytest.approx(2 * TRUE.seconds(*shape), rel=0.01)


@pytest.mark.parametrize("level", [0.1, 1.0, 10.0])
def test_small_batches_do_not_say_how_long_full_batches_take(level: float) -> None:
    full, random = Shape.of([48] * 40), Random(1)
    learnt = LearntCost(DISTURBED, full)
    # Below a certain size, reading the weights takes longer than computing.
    alone_s = level * DISTURBED.seconds(*Shape.of([12]))
    for _ in range(1000):
        learnt.note_batch(Shape.of([random.randint(3, 15)]), alone_s * random.gauss(1.0, 0.03))
    assert 0.3 < learnt.cost.seconds(*full) / DISTURBED.seconds(*full) < 3.3
    for shape in (Shape.of([5]), Shape.of([12])):
        assert learnt.cost.seconds(*shape) == pytest.approx(alone_s, rel=0.5)


def test_what_large_batches_take_is_learnt_however_wrong_the_start_was() -> None:
    learnt = LearntCost(DISTURBED.scaled(10), Shape.of([48] * 5))
    for shape in batches(200, 1):
        learnt.note_batch(shape, TRUE.seconds(*shape))
    for shape in batches(100, 2):
        assert learnt.cost.seconds(*shape) == pytest.approx(TRUE.seconds(*shape), rel=0.05)


def test_batches_that_were_disturbed_do_not_change_the_terms() -> None:
    learnt, random = LearntCost(TRUE), Random(7)
    for shape in batches(400, 7):
        learnt.note_batch(shape, TRUE.seconds(*shape) * (5 if random.random() < 0.2 else 1))
    for shape in batches(100, 8):
        assert learnt.cost.seconds(*shape) == pytest.approx(TRUE.seconds(*shape), rel=0.05)


def test_what_no_batch_tells_keeps_its_scale_however_many_uneven_batches_run() -> None:
    true, random = replace(TRUE, hidden_row_s=1e-5), Random(3)
    learnt = LearntCost(true)
    for shape in batches(6400, 3):
        learnt.note_batch(shape, true.seconds(*shape) * random.lognormvariate(0.0, 0.2))
    assert learnt.cost.hidden_row_s == pytest.approx(true.hidden_row_s, rel=0.2)


PHASES: dict[str, Callable[[Random], Shape]] = {
    "one short text": lambda random: Shape.of([8]),
    "hidden rows": lambda random: Shape.of([random.randint(18, 24) for _ in range(12)], hidden=True),
    "full batches": lambda random: Shape.of([random.randint(4, 60) for _ in range(random.randint(1, 16))]),
    "one long text": lambda random: Shape.of([60], hidden=random.random() < 0.5),
}


@settings(max_examples=30)
@given(
    phases=st.lists(st.sampled_from(sorted(PHASES)), min_size=1, max_size=40),
    seed=st.integers(0, 1000),
    hidden_row_s=st.sampled_from([0.0, 2e-6, 1e-4]),
)
def test_however_the_kinds_of_batches_change_predictions_keep_their_scale(
    phases: list[str], seed: int, hidden_row_s: float
) -> None:
    true, random = replace(TRUE, hidden_row_s=hidden_row_s), Random(seed)
    learnt = LearntCost(replace(DISTURBED, hidden_row_s=2 * hidden_row_s))
    for phase in phases:
        for _ in range(50):
            shape = PHASES[phase](random)
            learnt.note_batch(shape, true.seconds(*shape) * random.lognormvariate(0.0, 0.2))
    # What no batch tells may be wrong, but not absurd.
    for of_shape in PHASES.values():
        shape = of_shape(random)
        assert 0.25 < learnt.cost.seconds(*shape) / true.seconds(*shape) < 4
    full_s = true.in_full_batches_s(4000, 20, 256) + 4000 * hidden_row_s
    assert 0.25 < (learnt.cost.in_full_batches_s(4000, 20, 256) + 4000 * learnt.cost.hidden_row_s) / full_s < 4


def test_many_small_batches_do_not_displace_what_large_batches_have_taught() -> None:
    learnt = LearntCost(DISTURBED)
    for shape in (*batches(200, 1), *[Shape.of([8])] * 2000):
        learnt.note_batch(shape, TRUE.seconds(*shape))
    for shape in batches(100, 2):
        assert learnt.cost.seconds(*shape) == pytest.approx(TRUE.seconds(*shape), rel=0.05)


def test_the_cost_of_hidden_rows_is_learnt() -> None:
    true = replace(TRUE, hidden_row_s=5e-5)
    learnt = LearntCost(DISTURBED)
    for number, shape in enumerate(batches(200, 1)):
        each = shape._replace(hidden=number % 2 == 0)
        learnt.note_batch(each, true.seconds(*each))
    assert learnt.cost.hidden_row_s == pytest.approx(true.hidden_row_s, rel=0.05)


def test_a_fit_that_knows_only_hidden_rows_ends_in_no_division_by_zero() -> None:
    only_rows = CostModel(launch_s=0.0, token_s=0.0, padded_s=0.0, cell_s=0.0, hidden_row_s=1e-5)
    learnt = LearntCost(DISTURBED)
    with patch.object(cost, "fit", lambda *_, **__: only_rows):
        for shape in batches(64, 1):
            learnt.note_batch(shape, TRUE.seconds(*shape))
    assert learnt.fitted_count == 2


def test_batches_that_take_either_a_short_or_a_long_time_are_learnt_too() -> None:
    learnt, shape = LearntCost(TRUE), Shape.of([12])
    for number in range(64):
        learnt.note_batch(shape, TRUE.seconds(*shape) * (10 if number % 2 else 1))
    assert learnt.fitted_count == 2
    assert 1 <= learnt.cost.seconds(*shape) / TRUE.seconds(*shape) <= 10.001


def test_one_second_of_short_batches_is_fitted_at_most_four_times() -> None:
    learnt, shape = LearntCost(TRUE.scaled(0.05)), Shape.of([8])
    batch_s = learnt.cost.seconds(*shape)
    for _ in range(int(1 / batch_s)):
        learnt.note_batch(shape, batch_s)
    assert learnt.batch_count > 5_000
    assert 1 <= learnt.fitted_count <= 4
