"""What a batch costs, by measurement, and how large it may be."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple, Self

import numpy as np

# A larger token budget is worth its latency where it is faster by more than this, in most of the rounds.
_WORTH_IT = 1 / 0.97
_MOST = 0.75


class Shape(NamedTuple):
    """What a batch's cost depends on.

    Attributes:
        sequences: B.
        tokens: T = Σn.
        longest_tokens: N.
        squares: Σn².
    """

    sequences: int
    tokens: int
    longest_tokens: int
    squares: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self:
        """Return the shape of sequences of these lengths; there is at least one."""
        return cls(len(lengths), sum(lengths), max(lengths), sum(length * length for length in lengths))

    @property
    def mean_tokens(self) -> int:
        """The mean length, rounded down."""
        return self.tokens // self.sequences

    @property
    def padding_ratio(self) -> float:
        """Share of the cells of gathered attention that no sequence needs: 1 − Σn²/(B·N²)."""
        return 1.0 - self.squares / (self.sequences * self.longest_tokens**2)


@dataclass(slots=True)
class CostModel:
    """Seconds of a batch of B sequences of lengths n, T = Σn tokens, and N tokens in the longest.

    Where attention is gathered: launch_s + token_s·T + padded_s·B·N + cell_s·B·N².
    Where its kernel takes variable lengths: launch_s + token_s·T + cell_s·Σn².

    The launch is what a batch costs whatever its size: reading the weights, starting the operators.
    """

    launch_s: float
    token_s: float
    padded_s: float
    cell_s: float
    variable_length: bool = False

    def times(self, pace: float) -> "CostModel":
        """Return the costs where all takes so many times as long."""
        return CostModel(
            pace * self.launch_s, pace * self.token_s, pace * self.padded_s, pace * self.cell_s, self.variable_length
        )

    def seconds(self, sequences: int, tokens: int, longest_tokens: int, squares: int) -> float:
        """Return the cost of a batch: B, T, N and Σn²."""
        if self.variable_length:
            return self.launch_s + self.token_s * tokens + self.cell_s * squares
        rows = sequences * longest_tokens
        return self.launch_s + self.token_s * tokens + (self.padded_s + self.cell_s * longest_tokens) * rows

    def in_full_batches_s(self, tokens: int, length_tokens: int, budget_tokens: int) -> float:
        """Return the seconds of so many tokens in full batches of sequences of a length."""
        sequences = max(1, budget_tokens // length_tokens)
        full_tokens = sequences * length_tokens
        full_s = self.seconds(sequences, full_tokens, length_tokens, sequences * length_tokens**2)
        return full_s * tokens / full_tokens

    def padding_s(self, sequences: int, tokens: int, longest_tokens: int, squares: int) -> float:
        """Return the part of a batch's cost that equal lengths would not have."""
        if self.variable_length:
            return 0.0
        rows = sequences * longest_tokens
        return self.padded_s * (rows - tokens) + self.cell_s * (rows * longest_tokens - squares)


@dataclass(frozen=True)
class BatchLimits:
    """What a batch of more than one sequence may hold; one sequence alone may always run.

    Attributes:
        tokens: T at most.
        cells: B·N² at most, which bounds the memory of the attention scores.
        padded_tokens: B·N at most, which bounds the memory of rows that are padded, as they are for pooling.
    """

    tokens: int
    cells: int
    padded_tokens: int = sys.maxsize

    def halved(self) -> "BatchLimits":
        """Return the limits of batches of half the memory."""
        return BatchLimits(self.tokens // 2, self.cells // 2, self.padded_tokens // 2)


@dataclass(frozen=True)
class Sample:
    """The measured time of one batch.

    Attributes:
        shape: of the batch.
        seconds: what it took.
    """

    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], *, variable_length: bool = False) -> CostModel:
    """Fit the cost model to measured batches, by least squares of the relative error, with no term below zero.

    The best solution without negative coefficients is the unconstrained one over some subset of the terms, and there
    are few enough subsets to try them all.
    """
    rows = [_terms(sample.shape, variable_length) for sample in samples]
    relative = np.array(rows) / np.array([sample.seconds for sample in samples])[:, None]
    terms = range(relative.shape[1])
    best, smallest_error = np.zeros(len(terms)), float("inf")
    for kept in (list(subset) for size in range(1, len(terms) + 1) for subset in combinations(terms, size)):
        solution, *_ = np.linalg.lstsq(relative[:, kept], np.ones(len(samples)), rcond=None)
        error = float(np.square(relative[:, kept] @ solution - 1).sum())
        if (solution >= 0).all() and error < smallest_error:
            best, smallest_error = np.zeros(len(terms)), error
            best[kept] = solution
    launch_s, token_s, *padded_s, cell_s = best.tolist()
    return CostModel(launch_s, token_s, sum(padded_s), cell_s, variable_length)


def _terms(shape: Shape, variable_length: bool) -> list[int]:
    """Return what the coefficients multiply; without variable lengths, their number is that of B·N too."""
    if variable_length:
        return [1, shape.tokens, shape.squares]
    rows = shape.sequences * shape.longest_tokens
    return [1, shape.tokens, rows, rows * shape.longest_tokens]


def error_ratio(cost: CostModel, samples: Sequence[Sample]) -> float:
    """Return the median of |predicted − measured| / measured."""
    return median(abs(cost.seconds(*sample.shape) - sample.seconds) / sample.seconds for sample in samples)


def smallest_budget(rates: Mapping[int, Sequence[float]]) -> int:
    """Return the smallest token budget that no larger one beats by more than 3 % in most rounds.

    Only rates of the same round are compared: what slows a machine for a while slows all of them. In doubt the
    smaller wins, since requests wait less for smaller batches.

    Args:
        rates: tokens a second of each budget, one figure a round.
    """

    def beats(larger: int, smaller: int) -> bool:
        wins = [mine > _WORTH_IT * other for mine, other in zip(rates[larger], rates[smaller], strict=True)]
        return sum(wins) >= _MOST * len(wins)

    budgets = sorted(rates)
    return next(
        budget
        for place, budget in enumerate(budgets)
        if not any(beats(larger, budget) for larger in budgets[place + 1 :])
    )
