"""Fit the cost model to measured batches, and choose the token budget: pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.scheduling.cost import CostModel, Shape

# A larger token budget is worth its latency if it gives over 3 % more throughput in at least three of four rounds.
_MIN_SPEEDUP = 1 / 0.97
_MIN_WIN_RATIO = 0.75
# The weight of what was known before, for each coefficient, in samples: enough to decide what the samples leave open.
_PRIOR_WEIGHT = 0.06
# A coefficient that was 0 before may still take this share of the seconds.
_LEAST_SHARE = 0.02
# Batches of serving may change the token budget: a larger one must give this much more throughput, and a smaller one
# may lose this much.
_WORTH_DOUBLING, _WORTH_HALVING = 1.05, 0.985
_SMALLEST_BUDGET_TOKENS = 128
_TYPICAL_TOKENS = 48


@dataclass(frozen=True)
class Sample:
    """The shape of a batch, and its measured seconds."""

    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], *, variable_length: bool = False, prior: CostModel | None = None) -> CostModel:
    """Fit the cost model to measured batches by least squares of the relative error, with no negative coefficient.

    A `prior` decides what the samples leave open: if all batches have the same shape, for example, they do not tell one
    term from another.
    """
    rows = np.array([_terms(sample.shape, variable_length) for sample in samples], float)
    seconds = np.array([sample.seconds for sample in samples])
    relative, targets = rows / seconds[:, None], np.ones(len(samples))
    terms = np.flatnonzero(rows.any(axis=0))
    fitted = np.zeros(rows.shape[1])
    if prior is not None:
        before = np.array([prior.launch_s, prior.token_s, prior.padded_s, prior.cell_s, prior.hidden_row_s])
        fitted = before
        scale = np.maximum(before[terms], _LEAST_SHARE * seconds.mean() / rows[:, terms].mean(axis=0))
        relative = np.vstack([relative, np.zeros((len(terms), rows.shape[1]))])
        relative[-len(terms) :, terms] = _PRIOR_WEIGHT * np.diag(1 / scale)
        targets = np.append(targets, _PRIOR_WEIGHT * before[terms] / scale)
    fitted[terms] = _least_squares(relative[:, terms], targets)
    launch_s, token_s, padded_s, cell_s, hidden_row_s = fitted.tolist()
    return CostModel(launch_s, token_s, padded_s, cell_s, variable_length, hidden_row_s)


def _least_squares(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the x ≥ 0 with the smallest |rows · x − targets|: the best solution of any subset of the columns."""
    columns = range(rows.shape[1])
    best, smallest_error = np.zeros(len(columns)), float("inf")
    for chosen in (list(subset) for size in range(1, len(columns) + 1) for subset in combinations(columns, size)):
        solution, *_ = np.linalg.lstsq(rows[:, chosen], targets, rcond=None)
        error = float(np.square(rows[:, chosen] @ solution - targets).sum())
        if (solution >= 0).all() and error < smallest_error:
            best, smallest_error = np.zeros(len(columns)), error
            best[chosen] = solution
    return best


def _terms(shape: Shape, variable_length: bool) -> list[int]:
    """Return the numbers that the cost model multiplies by its coefficients for a batch of this shape."""
    padded_tokens = shape.sequences * shape.longest_tokens
    cells = shape.needed_cells if variable_length else padded_tokens * shape.longest_tokens
    return [1, shape.tokens, padded_tokens, cells, shape.tokens * shape.hidden]


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


def next_budget(cost: CostModel, budget: int, largest: int) -> int:
    """Return the token budget that follows from what was learnt while serving: the same, twice as much, or half of it.

    Args:
        cost: the cost model that was learnt.
        budget: the token budget that holds now.
        largest: the largest token budget allowed.
    """

    def tokens_per_s(tokens: int) -> float:
        return tokens / cost.in_full_batches_s(tokens, _TYPICAL_TOKENS, tokens)

    if 2 * budget <= largest and tokens_per_s(2 * budget) > _WORTH_DOUBLING * tokens_per_s(budget):
        return 2 * budget
    half = budget // 2
    if half >= _SMALLEST_BUDGET_TOKENS and tokens_per_s(half) > _WORTH_HALVING * tokens_per_s(budget):
        return half
    return budget
