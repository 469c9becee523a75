"""Predict the seconds of a batch: the cost model, its fit to measured batches, and the batch limits."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple, Self

import numpy as np

# A larger token budget is worth its latency if it is faster by more than 3 %, in at least three of four rounds.
_MIN_SPEEDUP = 1 / 0.97
_MIN_WIN_RATIO = 0.75


class Shape(NamedTuple):
    """The sizes that determine the cost of a batch.

    Attributes:
        sequences: number of sequences, B.
        tokens: number of tokens, T = Σn.
        longest_tokens: length of the longest sequence, N.
        needed_cells: attention cells without padding, Σn².
        hidden: whether hidden rows are copied to the host. If one sequence needs them, those of all are copied.
    """

    sequences: int
    tokens: int
    longest_tokens: int
    needed_cells: int
    hidden: bool = False

    @classmethod
    def of(cls, lengths: Sequence[int], *, hidden: bool = False) -> Self:
        """Return the shape of a batch of one or more sequences of these lengths."""
        return cls(len(lengths), sum(lengths), max(lengths), sum(length * length for length in lengths), hidden)

    @property
    def mean_tokens(self) -> int:
        """Mean length of the sequences, rounded down."""
        return self.tokens // self.sequences

    @property
    def padding_ratio(self) -> float:
        """Share of the B·N² attention cells that are padding: 1 − Σn²/(B·N²)."""
        return 1.0 - self.needed_cells / (self.sequences * self.longest_tokens**2)


@dataclass(slots=True)
class CostModel:
    """Predicts the seconds of a batch of B sequences of lengths n: T = Σn tokens, N tokens in the longest.

    A batch takes launch_s + token_s·T + padded_s·B·N + cell_s·(attention cells). Attention that is gathered to a padded
    grid has B·N² cells. An attention kernel of variable lengths has Σn²; pooling is padded nevertheless.

    The launch is the part that does not depend on the size of the batch: reading weights, starting operators. A batch
    whose hidden rows are copied to the host takes hidden_row_s·T more. This sum is then multiplied by `hidden_factor`:
    batches with hidden rows have a correction of their own.
    """

    launch_s: float
    token_s: float
    padded_s: float
    cell_s: float
    variable_length: bool = False
    hidden_row_s: float = 0.0
    hidden_factor: float = 1.0

    def scaled(self, factor: float, hidden_factor: float = 1.0) -> "CostModel":
        """Return a cost model of `factor` times the seconds, and `factor · hidden_factor` times with hidden rows."""
        return CostModel(
            factor * self.launch_s,
            factor * self.token_s,
            factor * self.padded_s,
            factor * self.cell_s,
            self.variable_length,
            factor * self.hidden_row_s,
            hidden_factor * self.hidden_factor,
        )

    def seconds(
        self, sequences: int, tokens: int, longest_tokens: int, needed_cells: int, hidden: bool = False
    ) -> float:
        """Return the seconds of a batch, given its B, T, N and Σn², and whether hidden rows are copied."""
        padded_tokens = sequences * longest_tokens
        cells = needed_cells if self.variable_length else padded_tokens * longest_tokens
        seconds = self.launch_s + self.token_s * tokens + self.padded_s * padded_tokens + self.cell_s * cells
        return self.hidden_factor * (seconds + self.hidden_row_s * tokens) if hidden else seconds

    def in_full_batches_s(self, tokens: int, length_tokens: int, budget_tokens: int) -> float:
        """Return the seconds of `tokens` tokens in full batches of sequences of one length."""
        sequences = max(1, budget_tokens // length_tokens)
        full_tokens = sequences * length_tokens
        full_s = self.seconds(sequences, full_tokens, length_tokens, sequences * length_tokens**2)
        return full_s * tokens / full_tokens

    def padding_s(
        self, sequences: int, tokens: int, longest_tokens: int, needed_cells: int, hidden: bool = False
    ) -> float:
        """Return the seconds that a batch spends on padding. `hidden` has no effect; arguments as in `seconds`."""
        padded_tokens = sequences * longest_tokens
        padding_cells = 0 if self.variable_length else padded_tokens * longest_tokens - needed_cells
        return self.padded_s * (padded_tokens - tokens) + self.cell_s * padding_cells


@dataclass(frozen=True)
class BatchLimits:
    """The largest batch of more than one sequence; a single sequence may always run alone.

    Attributes:
        tokens: token budget: most tokens, T.
        cells: most attention cells, B·N²; bounds the memory of the attention scores.
        padded_tokens: most padded tokens, B·N; bounds the memory of padded rows, which pooling needs.
        sequences: most sequences, B, that the kernels of the device take.
    """

    tokens: int
    cells: int
    padded_tokens: int = sys.maxsize
    sequences: int = sys.maxsize

    def scaled(self, share: float) -> "BatchLimits":
        """Return limits for a share of the memory, at least 1 each; what has no limit still has none."""
        tokens, cells, padded_tokens = (
            limit if limit == sys.maxsize else max(1, min(limit, int(share * limit)))
            for limit in (self.tokens, self.cells, self.padded_tokens)
        )
        return BatchLimits(tokens, cells, padded_tokens, self.sequences)


@dataclass(frozen=True)
class Sample:
    """The shape of a batch, and its measured seconds."""

    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], *, variable_length: bool = False) -> CostModel:
    """Fit the cost model to measured batches, by least squares of the relative error, without negative coefficients.

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
    """Return the smallest token budget that no larger one beats by more than 3 % in 75 % of the rounds.

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
