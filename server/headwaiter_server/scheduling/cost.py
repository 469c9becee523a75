"""The cost of a batch: its formula, the fit of the terms to timed batches, and what is learnt while serving."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.batch_timing import TYPICAL_TOKENS

# A larger token budget is worth its latency if it gives over 3 % more throughput in at least three of four rounds.
_MIN_SPEEDUP = 1 / 0.97
_MIN_WIN_RATIO = 0.75
# Batches of serving may change the token budget: a larger one must give this much more throughput, and a smaller one
# may lose this much.
_WORTH_DOUBLING, _WORTH_HALVING = 1.05, 0.985
_SMALLEST_BUDGET_TOKENS = 128
# A batch corrects this share of the error of its prediction: a higher share would follow the noise. No batch counts as
# longer or shorter by more than the factor, so that one disturbed batch changes a prediction by at most 5 %.
_CORRECTED_SHARE, _LARGEST_FACTOR = 0.2, 1.25
# The ratio and the error are medians over the latest batches; 16 of 31 decide.
_LATEST_BATCHES = 31


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
    def padding_ratio(self) -> float:
        """Share of the B·N² attention cells that are padding: 1 − Σn²/(B·N²)."""
        return 1.0 - self.needed_cells / (self.sequences * self.longest_tokens**2)


@dataclass(slots=True)
class CostModel:
    """Predicts the seconds of a batch of B sequences of lengths n: T = Σn tokens, N tokens in the longest.

    A batch takes launch_s + token_s·T + padded_s·B·N + cell_s·(attention cells). Attention that is gathered to a padded
    grid has B·N² cells. An attention kernel of variable lengths has Σn²; pooling is padded nevertheless.

    The launch is the part that does not depend on the size of the batch: reading weights, starting operators. A batch
    whose hidden rows are copied to the host takes hidden_row_s·T more.
    """

    launch_s: float
    token_s: float
    padded_s: float
    cell_s: float
    variable_length: bool = False
    hidden_row_s: float = 0.0

    def scaled(self, factor: float) -> "CostModel":
        """Return a cost model of `factor` times the seconds."""
        return CostModel(
            factor * self.launch_s,
            factor * self.token_s,
            factor * self.padded_s,
            factor * self.cell_s,
            self.variable_length,
            factor * self.hidden_row_s,
        )

    def seconds(
        self, sequences: int, tokens: int, longest_tokens: int, needed_cells: int, hidden: bool = False
    ) -> float:
        """Return the seconds of a batch, given its B, T, N and Σn², and whether hidden rows are copied."""
        padded_tokens = sequences * longest_tokens
        cells = needed_cells if self.variable_length else padded_tokens * longest_tokens
        seconds = self.launch_s + self.token_s * tokens + self.padded_s * padded_tokens + self.cell_s * cells
        return seconds + self.hidden_row_s * tokens if hidden else seconds

    def in_full_batches_s(
        self, tokens: int, length_tokens: int, budget_tokens: int, most_sequences: int = sys.maxsize
    ) -> float:
        """Return the seconds of `tokens` tokens in full batches of sequences of one length."""
        sequences = max(1, min(budget_tokens // length_tokens, most_sequences))
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
        sequences: most sequences, B, that the kernels of the device take, or that do not change each other.
        length_step: N is rounded up to a multiple of this number.
        one_length: whether only sequences of equal length share a batch, because padding would change their results.
    """

    tokens: int
    cells: int
    padded_tokens: int = sys.maxsize
    sequences: int = sys.maxsize
    length_step: int = 1
    one_length: bool = False

    def padded_length(self, longest_tokens: int) -> int:
        """Return N of a batch whose longest sequence has this length."""
        return -(-longest_tokens // self.length_step) * self.length_step

    def scaled(self, share: float) -> "BatchLimits":
        """Return limits for a share of the memory, at least 1 each; what has no limit still has none."""
        tokens, cells, padded_tokens = (
            limit if limit == sys.maxsize else max(1, min(limit, int(share * limit)))
            for limit in (self.tokens, self.cells, self.padded_tokens)
        )
        return replace(self, tokens=tokens, cells=cells, padded_tokens=padded_tokens)


@dataclass(frozen=True)
class Calibration:
    """The measured cost of a model on this machine.

    Attributes:
        service_tokens_per_s: tokens/s in full batches of sequences of typical length.
        error_ratio: median of |predicted − measured| / measured over the timed shapes.
        remembered: whether another version with the same graph has learnt the cost.
        largest_budget_tokens: the largest token budget that the model may learn; 0 stands for that of `limits`.
        measured_budget_tokens: the token budget that was measured, before a lack of memory lowered it.
        token_cap: the largest token budget that the settings allow; 0 for the provider's default.
    """

    cost: CostModel
    limits: BatchLimits
    service_tokens_per_s: float
    error_ratio: float
    remembered: bool = False
    largest_budget_tokens: int = 0
    measured_budget_tokens: int = 0
    token_cap: int = 0


@dataclass(frozen=True)
class Sample:
    """The shape of a batch, and its measured seconds."""

    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], *, variable_length: bool = False) -> CostModel:
    """Fit the cost model to measured batches by least squares of the relative error, with no negative coefficient."""
    relative = [np.array(_counts(sample.shape, variable_length)[:4]) / sample.seconds for sample in samples]
    launch_s, token_s, padded_s, cell_s = _least_squares(np.array(relative), np.ones(len(samples))).tolist()
    return CostModel(launch_s, token_s, padded_s, cell_s, variable_length)


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


def _counts(shape: Shape, variable_length: bool) -> list[int]:
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
        return tokens / cost.in_full_batches_s(tokens, TYPICAL_TOKENS, tokens)

    if 2 * budget <= largest and tokens_per_s(2 * budget) > _WORTH_DOUBLING * tokens_per_s(budget):
        return 2 * budget
    half = budget // 2
    if half >= _SMALLEST_BUDGET_TOKENS and tokens_per_s(half) > _WORTH_HALVING * tokens_per_s(budget):
        return half
    return budget


class LearntCost:
    """The cost model from start-up, corrected by the batches that have run since.

    The start may have been disturbed by other processes, and so may the present. Each batch therefore changes the terms
    such that a fifth of the error of its prediction disappears, by the least change in proportion to the terms
    (normalised least mean squares). The terms that take most of the batch's time change most, and a term that the batch
    does not have does not change. A batch that mainly consists of its launch changes only the launch: below a certain
    size, batches take the same time whatever their size, and would teach that tokens take no time.

    Attributes:
        cost: predicts the seconds of a batch.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start with the cost that was measured, or learnt by the version before."""
        self._start = self.cost = cost
        # Full of ones at first, so that one slow batch does not change their median.
        self._ratios = deque([1.0] * _LATEST_BATCHES, _LATEST_BATCHES)
        self._errors = deque[float](maxlen=_LATEST_BATCHES)

    @property
    def ratio(self) -> float:
        """Median of measured / predicted by the cost model from start-up; 2 on a machine of half the speed."""
        return median(self._ratios)

    @property
    def error_ratio(self) -> float:
        """Median of |predicted − measured| / measured over the latest batches; 0 before the first batch."""
        return median(self._errors) if self._errors else 0.0

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        cost = self.cost
        predicted_s, start_s = cost.seconds(*shape), self._start.seconds(*shape)
        if compute_s <= 0 or start_s <= 0:
            return predicted_s
        self._ratios.append(compute_s / start_s)
        self._errors.append(abs(predicted_s - compute_s) / compute_s)
        terms = (cost.launch_s, cost.token_s, cost.padded_s, cost.cell_s, cost.hidden_row_s)
        counts = _counts(shape, cost.variable_length)
        parts_s = [term * count for term, count in zip(terms, counts, strict=True)]
        if parts_s[0] > predicted_s / 2:
            parts_s[1:] = [0.0] * 4
        counted_s = min(max(compute_s, predicted_s / _LARGEST_FACTOR), predicted_s * _LARGEST_FACTOR)
        step = _CORRECTED_SHARE * (counted_s - predicted_s) / sum(part_s * part_s for part_s in parts_s)
        launch_s, token_s, padded_s, cell_s, hidden_row_s = (
            term * (1 + step * part_s) for term, part_s in zip(terms, parts_s, strict=True)
        )
        self.cost = CostModel(launch_s, token_s, padded_s, cell_s, cost.variable_length, hidden_row_s)
        return predicted_s
