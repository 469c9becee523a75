"""Learn the cost of a model's batches from those that run."""

from collections import deque
from statistics import median

from headwaiter_server.scheduling.cost import CostModel, Shape
from headwaiter_server.scheduling.cost_fit import Sample, error_ratio, fit

# The ratio follows the latest batches; 16 of 31 decide the median.
_RATIO_BATCHES = 31
# The terms of the cost model are fitted to this number of the latest batches, once in so many batches.
_FITTED_BATCHES = 128
_FIT_INTERVAL_BATCHES = 32
# Batches that took this many times as long as most others of their shape, or this part, were disturbed.
_OUTLIER_RATIO = 1.5


class LearntCost:
    """The cost model from start-up, and what the batches since then have taught.

    The start may have been disturbed by other processes, and so may the present. Two things are learnt: the terms of
    the cost model, by fitting them again and again to the latest 128 batches, and between two fits the median of
    measured / predicted over the latest 31 batches, which is quicker. Batches that copy hidden rows and other batches
    have medians of their own.

    Attributes:
        cost: predicts the seconds of a batch.
        ratios: the medians of measured / predicted by the cost model from start-up: `batch` without hidden rows,
            `hidden_batch` with hidden rows; 2 on a machine that runs at half its speed.
        batch_count: number of batches since the start.
        fitted_count: number of fits since the start.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start with `cost`, the cost model that was measured or stored before."""
        self._start = self._fitted = self.cost = cost
        self.ratios = {"batch": 1.0, "hidden_batch": 1.0}
        self.batch_count = self.fitted_count = 0
        # Full of ones at first, so one slow batch changes nothing, and a lasting change shows after 16 batches.
        self._to_start = {kind: deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES) for kind in self.ratios}
        self._to_fitted = {kind: deque([1.0] * _RATIO_BATCHES, _RATIO_BATCHES) for kind in self.ratios}
        self._samples = deque[Sample](maxlen=_FITTED_BATCHES)
        self._hidden_samples = deque[Sample](maxlen=_RATIO_BATCHES)

    @property
    def error_ratio(self) -> float:
        """Median of |predicted − measured| / measured over the latest batches; 0 before the first batch."""
        return error_ratio(self._fitted, self._samples) if self._samples else 0.0

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        predicted_s = self.cost.seconds(*shape)
        if compute_s <= 0 or self._start.seconds(*shape) <= 0:
            return predicted_s
        kind = "hidden_batch" if shape.hidden else "batch"
        self._to_start[kind].append(compute_s / self._start.seconds(*shape))
        self._to_fitted[kind].append(compute_s / self._fitted.seconds(*shape))
        self.ratios[kind] = median(self._to_start[kind])
        self.batch_count += 1
        if shape.hidden:
            self._hidden_samples.append(Sample(shape, compute_s))
        else:
            self._samples.append(Sample(shape, compute_s))
            if len(self._samples) >= _FIT_INTERVAL_BATCHES and self.batch_count % _FIT_INTERVAL_BATCHES == 0:
                self._fit()
        batch, hidden_batch = (median(self._to_fitted[kind]) for kind in ("batch", "hidden_batch"))
        self.cost = self._fitted.scaled(batch, hidden_batch / batch)
        return predicted_s

    def _fit(self) -> None:
        ratios = [sample.seconds / self._fitted.seconds(*sample.shape) for sample in self._samples]
        usual = median(ratios)
        steady = [
            sample
            for sample, ratio in zip(self._samples, ratios, strict=True)
            if usual / _OUTLIER_RATIO <= ratio <= usual * _OUTLIER_RATIO
        ]
        variable_length, hidden_row_s = self._start.variable_length, self._fitted.hidden_row_s
        prior = self._fitted.scaled(usual)
        fitted = fit(steady, variable_length=variable_length, prior=prior)
        fitted.hidden_row_s = usual * hidden_row_s
        self._fitted = fitted
        self.fitted_count += 1
        latest = {"batch": list(self._samples)[-_RATIO_BATCHES:], "hidden_batch": self._hidden_samples}
        for kind, samples in latest.items():
            self._to_fitted[kind].extend(sample.seconds / fitted.seconds(*sample.shape) for sample in samples)
