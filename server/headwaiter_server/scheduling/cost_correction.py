"""Correct predicted times with the measured times of the latest batches."""

from collections import deque
from statistics import median

from headwaiter_server.scheduling.cost import CostModel, Shape

# The correction follows the latest batches; 16 of 31 decide the median.
_WINDOW_BATCHES = 31


class CostCorrection:
    """Multiplies the cost model from start-up by the median of measured / predicted over the 31 latest batches.

    Batches that copy hidden rows and other batches correct only predictions of their own kind.

    Attributes:
        cost: predicts the seconds of a batch.
        ratios: the medians: `batch` without hidden rows, `hidden_batch` with hidden rows; 2 on a machine that runs at
            half its speed.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start without a correction of `cost`, the cost model that was measured at start-up."""
        self._measured = self.cost = cost
        self.ratios = {"batch": 1.0, "hidden_batch": 1.0}
        # Full of ones at first, so one slow batch changes nothing, and a lasting change shows after 16 batches.
        self._windows = {kind: deque([1.0] * _WINDOW_BATCHES, _WINDOW_BATCHES) for kind in self.ratios}

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        predicted_s, uncorrected_s = self.cost.seconds(*shape), self._measured.seconds(*shape)
        if uncorrected_s > 0 and compute_s > 0:
            kind = "hidden_batch" if shape.hidden else "batch"
            self._windows[kind].append(compute_s / uncorrected_s)
            self.ratios[kind] = median(self._windows[kind])
            self.cost = self._measured.scaled(self.ratios["batch"], self.ratios["hidden_batch"] / self.ratios["batch"])
        return predicted_s
