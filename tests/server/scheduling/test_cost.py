"""The cost model: the predicted seconds of a batch, its fit to measurements, and the token budget."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import (
    BatchLimits,
    CostModel,
    Sample,
    Shape,
    error_ratio,
    fit,
    next_budget,
    smallest_budget,
)

Lengths = tuple[int, ...]
coefficients = st.floats(1e-6, 1e-2)
costs = st.builds(CostModel, coefficients, coefficients, coefficients, coefficients, st.booleans())
lengths_lists = st.lists(st.integers(1, 300), min_size=1, max_size=20).map(tuple)
SHAPES: list[Lengths] = [(1,), (16,), (256,), (16,) * 32, (256, 256), (64,) * 8, (128,) * 4, (64, *(4,) * 15), (128, 1)]
CPU = CostModel(launch_s=3e-3, token_s=1.1e-4, padded_s=4e-6, cell_s=5e-7)


def test_attention_of_variable_lengths_computes_no_padding_but_pooling_does() -> None:
    gathered = CostModel(launch_s=1.0, token_s=2.0, padded_s=10.0, cell_s=100.0)
    assert gathered.seconds(*Shape.of((3, 1))) == 1 + 2 * 4 + 10 * 2 * 3 + 100 * 2 * 3 * 3
    assert gathered.padding_s(*Shape.of((3, 1))) == 10 * 2 + 100 * (2 * 9 - 10)
    varying = CostModel(launch_s=1.0, token_s=2.0, padded_s=10.0, cell_s=100.0, variable_length=True)
    assert varying.seconds(*Shape.of((3, 1))) == 1 + 2 * 4 + 10 * 2 * 3 + 100 * 10
    assert varying.padding_s(*Shape.of((3, 1))) == 10 * 2


@given(cost=costs, lengths=lengths_lists)
def test_a_batch_costs_one_launch_plus_its_sequences_plus_its_padding(cost: CostModel, lengths: Lengths) -> None:
    alone_s = sum(cost.seconds(*Shape.of((length,))) - cost.launch_s for length in lengths)
    expected_s = cost.launch_s + alone_s + cost.padding_s(*Shape.of(lengths))
    assert cost.seconds(*Shape.of(lengths)) == pytest.approx(expected_s)


@given(lengths=lengths_lists)
def test_a_shape_counts_sequences_tokens_cells_and_padding(lengths: Lengths) -> None:
    shape = Shape.of(lengths)
    tokens = np.arange(max(lengths)) < np.array(lengths)[:, None]
    cells = tokens[:, :, None] & tokens[:, None, :]
    assert shape[:4] == (len(lengths), tokens.sum(), tokens.shape[1], cells.sum())
    assert shape.padding_ratio == pytest.approx(1 - cells.mean())


@given(cost=costs, lengths=lengths_lists, factor=st.floats(0.1, 10))
def test_a_scaled_cost_model_predicts_scaled_times(cost: CostModel, lengths: Lengths, factor: float) -> None:
    shape = Shape.of(lengths)
    assert cost.scaled(factor).seconds(*shape) == pytest.approx(factor * cost.seconds(*shape))


@given(cost=costs, length=st.integers(1, 300), sequences=st.integers(1, 20))
def test_tokens_in_full_batches_take_the_time_of_these_batches(cost: CostModel, length: int, sequences: int) -> None:
    budget = length * sequences
    full_s = cost.seconds(*Shape.of([length] * sequences))
    assert cost.in_full_batches_s(3 * budget, length, budget) == pytest.approx(3 * full_s)
    # A batch is also full if no further sequence fits, or if its only sequence is longer than the budget.
    assert cost.in_full_batches_s(budget, length, budget + length - 1) == pytest.approx(full_s)
    assert cost.in_full_batches_s(budget, budget, 1) == pytest.approx(cost.seconds(*Shape.of([budget])))


def test_what_has_no_limit_still_has_none_when_limits_are_lowered() -> None:
    assert BatchLimits(100, sys.maxsize, 40).scaled(0.5) == BatchLimits(50, sys.maxsize, 20)


def _samples(cost: CostModel, noise: list[float]) -> list[Sample]:
    return [
        Sample(Shape.of(lengths), factor * cost.seconds(*Shape.of(lengths)))
        for lengths, factor in zip(SHAPES, noise, strict=True)
    ]


@given(cost=costs)
def test_a_fit_to_exact_measurements_predicts_every_shape(cost: CostModel) -> None:
    samples = _samples(cost, [1.0] * len(SHAPES))
    fitted = fit(samples, variable_length=cost.variable_length)
    assert error_ratio(fitted, samples) == pytest.approx(0, abs=1e-6)
    for lengths in SHAPES:
        assert fitted.seconds(*Shape.of(lengths)) == pytest.approx(cost.seconds(*Shape.of(lengths)), rel=1e-6)


@given(seconds=st.lists(st.floats(1e-6, 10.0), min_size=len(SHAPES), max_size=len(SHAPES)), varying=st.booleans())
def test_no_fitted_coefficient_is_negative_and_every_batch_costs_time(seconds: list[float], varying: bool) -> None:
    samples = [Sample(Shape.of(lengths), batch_s) for lengths, batch_s in zip(SHAPES, seconds, strict=True)]
    fitted = fit(samples, variable_length=varying)
    assert min(fitted.launch_s, fitted.token_s, fitted.padded_s, fitted.cell_s) >= 0
    assert fitted.seconds(1, 1, 1, 1) > 0


@given(noise=st.lists(st.floats(0.8, 1.25), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_the_error_of_a_fit_to_noisy_measurements_is_little_more_than_the_noise(noise: list[float]) -> None:
    fitted = fit(_samples(CPU, noise))
    for lengths in SHAPES:
        assert fitted.seconds(*Shape.of(lengths)) == pytest.approx(CPU.seconds(*Shape.of(lengths)), rel=0.5)


def test_a_fit_to_a_single_shape_predicts_this_shape() -> None:
    assert fit([Sample(Shape(4, 4, 1, 4), 0.5)] * 3).seconds(4, 4, 1, 4) == pytest.approx(0.5)


def test_the_error_of_a_fit_is_the_median_relative_to_the_measured_times() -> None:
    cost = CostModel(launch_s=1.0, token_s=0.0, padded_s=0.0, cell_s=0.0)
    assert error_ratio(cost, [Sample(Shape(1, 1, 1, 1), seconds) for seconds in (1.0, 2.0, 0.01)]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({128: [100.0]}, 128),
        ({128: [100.0] * 4, 256: [102.0] * 4, 512: [102.9] * 4}, 128),
        ({128: [100.0] * 4, 256: [104.0] * 4, 512: [106.0] * 4}, 256),
        ({128: [100.0] * 4, 256: [95.0] * 4, 512: [110.0] * 4}, 512),
        # One round of four was disturbed, which slowed all its budgets.
        ({128: [100.0, 100.0, 30.0, 100.0], 256: [101.0, 101.0, 101.0, 101.0]}, 128),
        ({128: [100.0, 100.0, 100.0, 100.0], 256: [110.0, 110.0, 30.0, 110.0]}, 256),
        # Each wins half of the rounds: the smaller budget is chosen.
        ({128: [100.0] * 4, 2048: [150.0, 90.0, 150.0, 90.0]}, 128),
    ],
)
def test_the_budget_is_the_smallest_that_no_larger_one_beats_by_three_percent_in_most_rounds(
    rates: dict[int, list[float]], chosen: int
) -> None:
    assert smallest_budget(rates) == chosen


@pytest.mark.parametrize(
    ("budget", "largest", "followed"),
    [(128, 4096, 256), (256, 4096, 256), (512, 4096, 512), (2048, 4096, 1024), (128, 128, 128), (128, 200, 128)],
)
def test_the_budget_follows_the_learnt_cost_in_steps_of_two(budget: int, largest: int, followed: int) -> None:
    # Launches take 10 % of the seconds of a batch of 128 tokens, and 5 % at 256.
    cost = CostModel(launch_s=1.6e-3, token_s=1.12e-4, padded_s=0.0, cell_s=0.0)
    assert next_budget(cost, budget, largest) == followed
