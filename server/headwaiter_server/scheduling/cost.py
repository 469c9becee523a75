"""The cost of a batch: its formula, the fit of the terms to timed batches, and what is learnt while serving."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from statistics import median, median_low
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

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
# The ratio follows the latest batches; 16 of 31 decide the median.
_RATIO_BATCHES = 31
# Between two fits of the terms, a device runs at least this many batches, for at least this many seconds. A fit takes
# over 1 ms, which is longer than many batches.
_FIT_INTERVAL_BATCHES, _FIT_INTERVAL_S = 32, 0.25
# Batches of similar shape: the latest of them are kept, so that many small batches do not displace the few large ones.
_SIMILAR_BATCHES = 32
# Batches of at least this share of a full batch tell how long full batches take. Until one has run, the time of a full
# batch follows the speed of smaller ones by about this factor, once the terms are fitted.
_LARGE_SHARE, _MOST_SCALING = 0.25, 2.0
# Batches that took this many times as long as most batches of similar shape, or this part, were disturbed.
_OUTLIER_RATIO = 1.5


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

    def full_shape(self) -> Shape:
        """Return the shape of a full batch of typical sequences."""
        length = min(_TYPICAL_TOKENS, self.tokens)
        return Shape.of([length] * max(1, min(self.tokens // length, self.padded_tokens // length, self.sequences)))

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


def fit(
    samples: Sequence[Sample],
    *,
    variable_length: bool = False,
    prior: CostModel | None = None,
    anchor: Sample | None = None,
) -> CostModel:
    """Fit the cost model to measured batches by least squares of the relative error, with no negative coefficient.

    A `prior` decides what the samples leave open: if all batches have the same shape, for example, they do not tell one
    term from another. An `anchor` counts as much as all samples together: below a certain size, batches take the same
    time whatever their size, and from them alone it would follow that large batches take no longer either.
    """
    rows = np.array([_terms(sample.shape, variable_length) for sample in samples], float)
    seconds = np.array([sample.seconds for sample in samples])
    relative, targets = rows / seconds[:, None], np.ones(len(samples))
    if anchor is not None:
        weight = len(samples) ** 0.5
        anchored = weight * np.array([_terms(anchor.shape, variable_length)]) / anchor.seconds
        relative, targets = np.vstack([relative, anchored]), np.append(targets, weight)
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


class LearntCost:
    """The cost model from start-up, and what the batches since then have taught.

    The start may have been disturbed by other processes, and so may the present. Two things are learnt: the terms of
    the cost model, by fitting them again and again to the latest batches of every shape, and between two fits the
    median of measured / predicted over the latest 31 batches, which is quicker. Until large batches run, what the start
    measured for a full batch holds, but for a factor of about two.

    Attributes:
        cost: predicts the seconds of a batch.
        batch_count: number of batches since the start.
        fitted_count: number of fits since the start.
    """

    def __init__(self, cost: CostModel, full: Shape | None = None) -> None:
        """Start with the cost that was measured, or learnt by the version before, and the shape of a full batch."""
        self._start = self._fitted = self.cost = cost
        self._full = full
        self._level = 1.0
        self.batch_count = self.fitted_count = 0
        # Batches since the latest fit, and their seconds.
        self._unfitted_batches, self._unfitted_s = 0, 0.0
        # Full of ones at first, so one slow batch changes nothing, and a lasting change shows after 16 batches.
        self._to_start = deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES)
        self._to_fitted = deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES)
        self._latest = deque[Sample](maxlen=_RATIO_BATCHES)
        self._similar: dict[tuple[int, int, bool], deque[Sample]] = {}

    @property
    def ratio(self) -> float:
        """Median of measured / predicted by the cost model from start-up; 2 on a machine of half the speed."""
        return median(self._to_start)

    @property
    def error_ratio(self) -> float:
        """Median of |predicted − measured| / measured over the latest batches; 0 before the first batch."""
        return error_ratio(self._fitted, self._latest) if self._latest else 0.0

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        predicted_s, start_s = self.cost.seconds(*shape), self._start.seconds(*shape)
        if compute_s <= 0 or start_s <= 0:
            return predicted_s
        sample = Sample(shape, compute_s)
        similar = (shape.sequences.bit_length(), shape.tokens.bit_length(), shape.hidden)
        self._similar.setdefault(similar, deque(maxlen=_SIMILAR_BATCHES)).append(sample)
        self._latest.append(sample)
        self._to_start.append(compute_s / start_s)
        self._to_fitted.append(_ratio(sample, self._fitted))
        self.batch_count += 1
        self._unfitted_batches += 1
        self._unfitted_s += compute_s
        if self._unfitted_batches >= _FIT_INTERVAL_BATCHES and self._unfitted_s >= _FIT_INTERVAL_S:
            self._fit()
        self.cost = self._fitted.scaled(median(self._to_fitted))
        return predicted_s

    def _fit(self) -> None:
        """Fit the terms; what no batch tells follows the ratio of all batches to the start.

        That ratio is always taken to the start, and not to the fit before, because its errors would multiply.
        """
        steady = list(chain.from_iterable(map(self._steady, self._similar.values())))
        level = median(_ratio(sample, self._start) for sample in steady)
        prior = self._fitted.scaled(level / self._level)
        anchor = self._anchor(steady, level)
        self._fitted = fit(steady, variable_length=prior.variable_length, prior=prior, anchor=anchor)
        self._level = level
        self.fitted_count += 1
        self._unfitted_batches, self._unfitted_s = 0, 0.0
        self._to_fitted.extend(_ratio(sample, self._fitted) for sample in self._latest)

    def _anchor(self, samples: Sequence[Sample], level: float) -> Sample | None:
        """Return what the start predicts for a full batch; None if batches of a similar size have run."""
        if self._full is None:
            return None
        largest_tokens = max(sample.shape.tokens for sample in samples)
        if largest_tokens >= _LARGE_SHARE * self._full.tokens:
            return None
        factor = min(max(level, 1 / _MOST_SCALING), _MOST_SCALING)
        return Sample(self._full, factor * self._start.seconds(*self._full))

    def _steady(self, similar: deque[Sample]) -> list[Sample]:
        """Return the batches of similar shape that took as long as most of them."""
        ratios = [_ratio(sample, self._fitted) for sample in similar]
        # A ratio that occurs, so that at least one batch is left.
        usual = median_low(ratios)
        return [
            sample
            for sample, ratio in zip(similar, ratios, strict=True)
            if usual / _OUTLIER_RATIO <= ratio <= usual * _OUTLIER_RATIO
        ]


def _ratio(sample: Sample, cost: CostModel) -> float:
    """Return measured / predicted; 1 for a batch that takes no time by a cost model which knows only hidden rows."""
    predicted_s = cost.seconds(*sample.shape)
    return sample.seconds / predicted_s if predicted_s > 0 else 1.0
