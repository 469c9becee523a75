"""The predicted seconds of a batch, and the batch limits."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape

Lengths = tuple[int, ...]
coefficients = st.floats(1e-6, 1e-2)
costs = st.builds(CostModel, coefficients, coefficients, coefficients, coefficients, st.booleans())
lengths_lists = st.lists(st.integers(1, 300), min_size=1, max_size=20).map(tuple)


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
