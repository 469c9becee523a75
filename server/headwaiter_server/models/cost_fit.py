"""Fit the cost model to measured batches, and choose the token budget: pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from headwaiter_server.scheduling.cost import CostModel, Shape

# A larger token budget is worth its latency if it gives over 3 % more throughput in at least three of four rounds.
_MIN_SPEEDUP = 1 / 0.97
_MIN_WIN_RATIO = 0.75


@dataclass(frozen=True)
class Sample:
    """The shape of a batch, and its measured seconds."""

    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], *, variable_length: bool = False) -> CostModel:
    """Fit the cost model to measured batches by least squares of the relative error, with no negative coefficient.

    The best solution without negative coefficients is the least-squares solution of some subset of the terms, so try
    all subsets; there are at most 15.
    """
    rows = [_terms(sample.shape, variable_length) for sample in samples]
    relative = np.array(rows) / np.array([sample.seconds for sample in samples])[:, None]
    terms = range(relative.shape[1])
    best, smallest_error = np.zeros(len(terms)), float("inf")
    for chosen in (list(subset) for size in range(1, len(terms) + 1) for subset in combinations(terms, size)):
        solution, *_ = np.linalg.lstsq(relative[:, chosen], np.ones(len(samples)), rcond=None)
        error = float(np.square(relative[:, chosen] @ solution - 1).sum())
        if (solution >= 0).all() and error < smallest_error:
            best, smallest_error = np.zeros(len(terms)), error
            best[chosen] = solution
    launch_s, token_s, padded_s, cell_s = best.tolist()
    return CostModel(launch_s, token_s, padded_s, cell_s, variable_length)


def _terms(shape: Shape, variable_length: bool) -> list[int]:
    """Return the numbers that the cost model multiplies by its coefficients for a batch of this shape."""
    padded_tokens = shape.sequences * shape.longest_tokens
    cells = shape.needed_cells if variable_length else padded_tokens * shape.longest_tokens
    return [1, shape.tokens, padded_tokens, cells]


def error_ratio(cost: CostModel, samples: Sequence[Sample]) -> float:
    """Return the median of |predicted − measured| / measured."""
    return median(abs(cost.seconds(*sample.shape) - sample.seconds) / sample.seconds for sample in samples)


def smallest_budget(rates: Mapping[int, Sequence[float]]) -> int:
    """Return the smallest token budget that no larger one beats by more than 3 % in at least 75 % of the rounds.

    Rates are compared only within a round, because a disturbance of the machine slows the whole round. In doubt the
    smaller budget wins, because requests wait less for smaller batches.

    Args:
        rates: for each budget, the tokens/s of each round.
    """

    def beats(larger: int, smaller: int) -> bool:
        wins = [rate > _MIN_SPEEDUP * other for rate, other in zip(rates[larger], rates[smaller], strict=True)]
        return sum(wins) >= _MIN_WIN_RATIO * len(wins)

    budgets = sorted(rates)
    return next(
        budget
        for index, budget in enumerate(budgets)
        if not any(beats(larger, budget) for larger in budgets[index + 1 :])
    )
