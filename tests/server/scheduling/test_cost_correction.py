"""A majority of measured batches corrects the predicted times, and a few outliers do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import CostModel, Shape
from headwaiter_server.scheduling.cost_correction import CostCorrection

COST = CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.0)
UNEVEN = Shape.of([4, 2])
# A launch, 6 tokens, and 2 × 4 padded tokens.
UNEVEN_S, UNEVEN_PADDING_S = 1 + 3 + 2, 0.5
A_MAJORITY = 16


@pytest.fixture
def correction() -> CostCorrection:
    return CostCorrection(COST)


def test_before_the_first_batch_nothing_is_corrected(correction: CostCorrection) -> None:
    assert correction.cost.seconds(*UNEVEN) == UNEVEN_S
    assert correction.own_work_s(UNEVEN) == UNEVEN_S - UNEVEN_PADDING_S


def test_after_a_majority_of_slow_batches_slow_batches_are_predicted(
    correction: CostCorrection,
) -> None:
    predicted_s = [correction.note_batch(UNEVEN, 3 * UNEVEN_S) for _ in range(A_MAJORITY + 1)]
    assert predicted_s == [UNEVEN_S] * A_MAJORITY + [3 * UNEVEN_S]
    assert correction.cost.seconds(*UNEVEN) == 3 * UNEVEN_S
    assert correction.own_work_s(UNEVEN) == 3 * (UNEVEN_S - UNEVEN_PADDING_S)


def test_batches_with_hidden_rows_and_other_batches_correct_only_their_own_kind() -> None:
    correction = CostCorrection(CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.0, hidden_row_s=0.5))
    with_rows = UNEVEN._replace(hidden=True)
    with_rows_s = UNEVEN_S + 3
    for _ in range(A_MAJORITY):
        correction.note_batch(with_rows, 3 * with_rows_s)
    assert correction.cost.seconds(*with_rows) == pytest.approx(3 * with_rows_s)
    assert correction.cost.seconds(*UNEVEN) == UNEVEN_S
    for _ in range(A_MAJORITY):
        correction.note_batch(UNEVEN, 2 * UNEVEN_S)
    assert correction.cost.seconds(*with_rows) == pytest.approx(3 * with_rows_s)
    assert correction.cost.seconds(*UNEVEN) == 2 * UNEVEN_S
    assert correction.ratios == {"batch": 2.0, "hidden_batch": pytest.approx(3.0)}


def _ratio_after(*ratios: float) -> float:
    """Return the correction after batches that took these multiples of their predicted times."""
    correction = CostCorrection(COST)
    for ratio in ratios:
        correction.note_batch(UNEVEN, ratio * UNEVEN_S)
    return correction.ratios["batch"]


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


def test_batches_that_took_no_time_on_a_coarse_clock_are_ignored() -> None:
    assert _ratio_after(*[0.0] * 31) == 1
