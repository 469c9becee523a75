"""What a batch costs, and how large it may be."""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sample:
    """The measured time of one batch.

    Attributes:
        tokens: T, the tokens of the batch.
        cells: B·N², the attention cells, padding included.
        seconds: what it took.
    """

    tokens: int
    cells: int
    seconds: float


@dataclass(frozen=True)
class CostModel:
    """Seconds of a batch: launch_s + token_s·T + padded_s·B·N + cell_s·B·N²."""

    launch_s: float
    token_s: float
    padded_s: float
    cell_s: float
    variable_length: bool = False

    def seconds(self, sequences: int, tokens: int, longest_tokens: int, squares: int) -> float:
        """Return the cost of a batch of B sequences, T tokens, N tokens in the longest, and Σ n²."""
        if self.variable_length:
            return self.launch_s + self.token_s * tokens + self.cell_s * squares
        padded = sequences * longest_tokens
        return self.launch_s + self.token_s * tokens + self.padded_s * padded + self.cell_s * padded * longest_tokens

    def padding_s(self, sequences: int, tokens: int, longest_tokens: int, squares: int) -> float:
        """Return the part of it that padding costs."""
        if self.variable_length:
            return 0.0
        padded = sequences * longest_tokens
        return self.padded_s * (padded - tokens) + self.cell_s * (padded * longest_tokens - squares)


class Pace:
    """What batches really take, by what the cost model says: the median of the latest ratios."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=31)
        self.factor = 1.0

    def add(self, predicted_s: float, actual_s: float) -> None:
        """Take note of a batch."""
        self._ratios.append(max(actual_s / predicted_s, 1e-3))
        self.factor = statistics.median(self._ratios)


@dataclass(frozen=True)
class BatchLimits:
    """What a batch of more than one sequence may hold; one sequence alone may always run.

    Attributes:
        tokens: T at most.
        cells: B·N² at most, which bounds the memory of the attention scores.
    """

    tokens: int
    cells: int


def fit(samples: Sequence[Sample]) -> CostModel:
    """Fit the cost model to measured batches, by least squares of the relative error.

    No term may be negative: a term that noise drives below zero is dropped, and the others fitted again.
    """
    terms = np.array([[1.0, sample.tokens, sample.cells] for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    relative = terms / seconds[:, None]
    kept = [0, 1, 2]
    while True:
        solution, *_ = np.linalg.lstsq(relative[:, kept], np.ones(len(samples)), rcond=None)
        if (solution >= 0).all():
            break
        kept.pop(int(np.argmin(solution)))
    coefficients = np.zeros(3)
    coefficients[kept] = solution
    launch_s, token_s, cell_s = (float(value) for value in coefficients)
    return CostModel(launch_s, token_s, 0.0, cell_s)
