"""Learn the cost of a model's batches from those that run."""

from collections import deque
from itertools import chain
from statistics import median, median_low

from headwaiter_server.scheduling.cost import CostModel, Shape
from headwaiter_server.scheduling.cost_fit import Sample, error_ratio, fit

# The ratio follows the latest batches; 16 of 31 decide the median.
_RATIO_BATCHES = 31
# The terms are fitted once in so many batches.
_FIT_INTERVAL_BATCHES = 32
# Batches of similar shape: the latest of them are kept, so that many small batches do not displace the few large ones.
_SIMILAR_BATCHES = 32
# Batches that took this many times as long as most batches of similar shape, or this part, were disturbed.
_OUTLIER_RATIO = 1.5


class LearntCost:
    """The cost model from start-up, and what the batches since then have taught.

    The start may have been disturbed by other processes, and so may the present. Two things are learnt: the terms of
    the cost model, by fitting them again and again to the latest batches of every shape, and between two fits the
    median of measured / predicted over the latest 31 batches, which is quicker.

    Attributes:
        cost: predicts the seconds of a batch.
        ratio: the median of measured / predicted by the cost model from start-up; 2 on a machine that runs at half its
            speed.
        batch_count: number of batches since the start.
        fitted_count: number of fits since the start.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start with `cost`, the cost model that was measured or stored before."""
        self._start = self._fitted = self.cost = cost
        self.ratio = self._level = 1.0
        self.batch_count = self.fitted_count = 0
        # Full of ones at first, so one slow batch changes nothing, and a lasting change shows after 16 batches.
        self._to_start = deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES)
        self._to_fitted = deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES)
        self._latest = deque[Sample](maxlen=_RATIO_BATCHES)
        self._similar: dict[tuple[int, int, bool], deque[Sample]] = {}

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
        self.ratio = median(self._to_start)
        self.batch_count += 1
        if self.batch_count % _FIT_INTERVAL_BATCHES == 0:
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
        self._fitted, self._level = fit(steady, variable_length=prior.variable_length, prior=prior), level
        self.fitted_count += 1
        self._to_fitted.extend(_ratio(sample, self._fitted) for sample in self._latest)

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
