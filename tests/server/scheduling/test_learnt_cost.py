"""Predicted times follow the batches that run: in their scale and in their terms, and little after a single batch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import CostModel, LearntCost, Shape

COST = CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.0)
UNEVEN = Shape.of([4, 2])
# A launch, 6 tokens, and 2 × 4 padded tokens.
UNEVEN_S, UNEVEN_PADDING_S = 1 + 3 + 2, 0.5


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_lasting_change_of_speed_is_predicted_after_twenty_batches(factor: float) -> None:
    learnt = LearntCost(COST)
    assert learnt.own_work_s(UNEVEN) == UNEVEN_S - UNEVEN_PADDING_S
    assert learnt.note_batch(UNEVEN, factor * UNEVEN_S) == UNEVEN_S
    for _ in range(19):
        learnt.note_batch(UNEVEN, factor * UNEVEN_S)
    assert learnt.cost.seconds(*UNEVEN) == pytest.approx(factor * UNEVEN_S, rel=0.1)
    assert learnt.own_work_s(UNEVEN) == pytest.approx(factor * (UNEVEN_S - UNEVEN_PADDING_S), rel=0.15)


@pytest.mark.parametrize("factor", [1e-3, 0.5, 2.0, 1e3])
def test_one_disturbed_batch_changes_a_prediction_by_five_percent_at_most(factor: float) -> None:
    learnt = LearntCost(COST)
    learnt.note_batch(UNEVEN, factor * UNEVEN_S)
    assert learnt.cost.seconds(*UNEVEN) == pytest.approx(UNEVEN_S, rel=0.0501)
    assert learnt.error_ratio == pytest.approx(abs(1 - factor) / factor)


def test_a_coarse_clock_that_measures_no_time_changes_nothing() -> None:
    learnt = LearntCost(COST)
    for _ in range(31):
        learnt.note_batch(UNEVEN, 0.0)
    assert learnt.ratio == 1.0


@given(
    steady=st.floats(0.1, 10.0),
    ratios=st.lists(st.floats(1e-3, 1e3), min_size=15, max_size=15),
    positions=st.lists(st.integers(0, 30), min_size=15, max_size=15, unique=True),
)
def test_a_minority_of_batches_does_not_change_the_ratio(
    steady: float, ratios: list[float], positions: list[int]
) -> None:
    disturbed = dict(zip(positions, ratios, strict=True))
    learnt = LearntCost(COST)
    for position in range(31):
        learnt.note_batch(UNEVEN, disturbed.get(position, steady) * UNEVEN_S)
    assert learnt.ratio == pytest.approx(steady)


# What a disturbed start measured, and what is true.
DISTURBED = CostModel(launch_s=2.0e-3, token_s=3.1e-4, padded_s=4.0e-5, cell_s=0.0)
TRUE = CostModel(launch_s=1.6e-3, token_s=1.05e-4, padded_s=3.3e-6, cell_s=7e-8)


def batches(count: int, seed: int) -> Iterator[Shape]:
    """Yield the shapes of batches of texts of various lengths, with little padding, as a stingy planner makes them."""
    random = Random(seed)
    for _ in range(count):
        longest = random.randint(4, 60)
        yield Shape.of([random.randint(max(1, longest * 3 // 4), longest) for _ in range(random.randint(1, 16))])


def median_error(learnt: LearntCost, true: CostModel) -> float:
    return median(abs(learnt.cost.seconds(*shape) / true.seconds(*shape) - 1) for shape in batches(100, 100))


@pytest.mark.parametrize("seed", range(5))
def test_within_200_batches_the_terms_recover_from_a_start_that_was_disturbed(seed: int) -> None:
    learnt, random = LearntCost(DISTURBED), Random(seed)
    for shape in batches(200, seed):
        learnt.note_batch(shape, TRUE.seconds(*shape) * random.gauss(1.0, 0.03))
    # The planner compares the cost of padding with that of a launch.
    assert learnt.cost.launch_s == pytest.approx(TRUE.launch_s, rel=0.25)
    assert learnt.cost.padded_s < DISTURBED.padded_s
    assert median_error(learnt, TRUE) < 0.03


def test_a_launch_of_a_quarter_in_small_batches_alone_is_learnt_within_200_batches() -> None:
    """As when the kernels of small batches are started together, in a CUDA graph."""
    replayed, learnt = replace(TRUE, launch_s=TRUE.launch_s / 4), LearntCost(TRUE)
    small, large = Shape.of([6, 5]), Shape.of([30] * 16)
    for number in range(200):
        if number % 4:
            learnt.note_batch(small, replayed.seconds(*small))
        else:
            learnt.note_batch(large, TRUE.seconds(*large))
    assert learnt.cost.seconds(*small) == pytest.approx(replayed.seconds(*small), rel=0.05)
    assert learnt.cost.seconds(*large) == pytest.approx(TRUE.seconds(*large), rel=0.1)
    assert learnt.cost.launch_s < TRUE.launch_s / 2


@pytest.mark.parametrize("level", [1.0, 10.0])
def test_small_batches_do_not_say_how_long_full_batches_take(level: float) -> None:
    full, random = Shape.of([48] * 40), Random(1)
    learnt = LearntCost(DISTURBED)
    # Below a certain size, reading the weights takes longer than computing.
    alone_s = level * DISTURBED.seconds(*Shape.of([12]))
    for _ in range(10_000):
        learnt.note_batch(Shape.of([random.randint(3, 15)]), alone_s * random.gauss(1.0, 0.03))
    assert 0.5 < learnt.cost.seconds(*full) / DISTURBED.seconds(*full) < 5
    for shape in (Shape.of([5]), Shape.of([12])):
        assert learnt.cost.seconds(*shape) == pytest.approx(alone_s, rel=0.25)


def test_no_term_drifts_however_many_uneven_batches_run_and_a_term_that_none_has_stays() -> None:
    true, random = replace(TRUE, hidden_row_s=1e-5), Random(3)
    learnt = LearntCost(true)
    for shape in batches(6400, 3):
        learnt.note_batch(shape, true.seconds(*shape) * random.lognormvariate(0.0, 0.2))
    assert median_error(learnt, true) < 0.15
    assert learnt.cost.launch_s == pytest.approx(true.launch_s, rel=0.3)
    assert true.padded_s / 2 < learnt.cost.padded_s < 2 * true.padded_s
    assert learnt.cost.hidden_row_s == true.hidden_row_s


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


def test_the_cost_of_hidden_rows_is_learnt() -> None:
    true = replace(TRUE, hidden_row_s=5e-5)
    learnt = LearntCost(replace(DISTURBED, hidden_row_s=1.5e-4))
    for number, shape in enumerate(batches(200, 1)):
        each = shape._replace(hidden=number % 2 == 0)
        learnt.note_batch(each, true.seconds(*each))
    assert learnt.cost.hidden_row_s == pytest.approx(true.hidden_row_s, rel=0.1)
