"""Correct predicted times with the measured times of the latest batches."""

from collections import deque

from headwaiter_server.scheduling.cost import CostModel, Shape

# The correction follows the latest batches; 16 of 31 decide the median.
_WINDOW_BATCHES = 31


class CostCorrection:
    """Multiplies the measured cost model by measured / predicted, from the latest batches.

    Batches that copy hidden rows and other batches correct only predictions of their own kind.

    Attributes:
        cost: predicts the seconds of a batch.
        ratios: the latest median of measured / predicted times: `batch` without hidden rows, `hidden_batch` with hidden
            rows.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start without a correction of `cost`, the cost model that was measured at start-up."""
        self._measured = self.cost = cost
        self._medians = {False: MedianRatio(), True: MedianRatio()}
        self.ratios = {"batch": 1.0, "hidden_batch": 1.0}

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        predicted_s = self.cost.seconds(*shape)
        median = self._medians[shape.hidden]
        median.learn(self._measured.seconds(*shape), compute_s)
        self.ratios["hidden_batch" if shape.hidden else "batch"] = median.ratio
        self.cost = self._measured.scaled(self.ratios["batch"], self.ratios["hidden_batch"] / self.ratios["batch"])
        return predicted_s


class MedianRatio:
    """The median of measured / predicted over the 31 latest batches; 2 on a machine that runs at half its speed.

    The window starts full of ones, so one slow batch changes nothing, and a lasting change shows after 16 batches.

    Attributes:
        ratio: the median.
    """

    def __init__(self) -> None:
        """Start at a ratio of 1."""
        self._ratios = deque([1.0] * _WINDOW_BATCHES, _WINDOW_BATCHES)
        self.ratio = 1.0

    def learn(self, predicted_s: float, actual_s: float) -> None:
        """Add a batch, with its seconds predicted without correction and its measured seconds."""
        if predicted_s > 0 and actual_s > 0:
            self._ratios.append(actual_s / predicted_s)
            self.ratio = sorted(self._ratios)[_WINDOW_BATCHES // 2]
