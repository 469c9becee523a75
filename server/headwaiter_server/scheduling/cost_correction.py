"""Correct predicted times with the measured times of the latest batches: cost correction and safety margin."""

from collections import deque

from headwaiter_server.scheduling.cost import CostModel, Shape

# The cost correction and the safety margin each follow this many batches; 16 of them decide the median.
_WINDOW_BATCHES = 31
# The time to write and send an answer.
_REPLY_S = 0.005
# The safety margin covers the lateness of 28 of the 31 latest batches.
_IN_TIME_BATCHES = 28


class CostCorrection:
    """Multiplies the measured cost model by measured / predicted, from the latest batches.

    Batches that copy hidden rows and other batches correct only predictions of their own kind.

    Attributes:
        cost: predicts the seconds of a batch on the device.
        ratios: the latest median of measured / predicted times: `batch` without hidden rows, `hidden_batch` with hidden
            rows, and `queue`, on which `queue_cost` is based.
        queue_cost: predicts how long a batch keeps a device from the next batch, while sequences are waiting.
    """

    def __init__(self, cost: CostModel) -> None:
        """Start without a correction of `cost`, the cost model that was measured at start-up."""
        self._measured = self.cost = self.queue_cost = cost
        self._batch_ratios = {False: MedianRatio(), True: MedianRatio()}
        self._queue_ratio, self._margin = MedianRatio(), SafetyMargin()
        self.ratios = {"batch": 1.0, "hidden_batch": 1.0, "queue": 1.0}

    @property
    def safety_margin_s(self) -> float:
        """How much earlier than its deadline an answer must be predicted, in seconds."""
        return self._margin.seconds

    def own_work_s(self, shape: Shape) -> float:
        """Return the seconds that a request takes alone on a device, without padding."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def note_batch(self, shape: Shape, compute_s: float) -> float:
        """Learn from the duration of a batch on the device; return the duration that was predicted before."""
        predicted_s = self.cost.seconds(*shape)
        self._learn_ratio(self._measured.seconds(*shape), compute_s, hidden=shape.hidden)
        return predicted_s

    def note_queue_time(self, shape: Shape, device_s: float, budget_tokens: int | None) -> None:
        """Learn from the time for which a batch kept its device from the next batch.

        Args:
            shape: the shape of the batch.
            device_s: seconds since the end of the previous batch, or since this batch's start if the device was idle.
            budget_tokens: the token budget if further sequences were waiting; None if the queue was empty. If sequences
                were waiting, a batch below the budget is compared with a part of a full batch, because it advances
                the queue more slowly.
        """
        measured = self._measured
        predicted_s = (
            measured.seconds(*shape)
            if budget_tokens is None
            else measured.in_full_batches_s(shape.tokens, shape.mean_tokens, budget_tokens)
            + measured.hidden_row_s * shape.tokens * shape.hidden
        )
        self._queue_ratio.learn(predicted_s, device_s)
        self.ratios["queue"] = self._queue_ratio.ratio
        self.queue_cost = measured.scaled(self._queue_ratio.ratio)

    def note_lateness(self, late_s: float) -> None:
        """Learn from the seconds between the predicted and the real end of a batch; negative if the batch was early."""
        self._margin.learn(late_s)

    def drift_to_measured(self) -> None:
        """Move the correction one step back towards the measured cost model.

        When predictions are so long that every sequence expires, no batch runs that could lower the correction.
        """
        for hidden in self._batch_ratios:
            self._learn_ratio(1.0, 1.0, hidden=hidden)

    def _learn_ratio(self, predicted_s: float, actual_s: float, *, hidden: bool) -> None:
        self._batch_ratios[hidden].learn(predicted_s, actual_s)
        self.ratios["hidden_batch" if hidden else "batch"] = self._batch_ratios[hidden].ratio
        self.cost = self._measured.scaled(self.ratios["batch"], self.ratios["hidden_batch"] / self.ratios["batch"])


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


class SafetyMargin:
    """How much earlier than its deadline an answer must be predicted, so that nine of ten answers are in time.

    Attributes:
        seconds: the margin.
    """

    def __init__(self) -> None:
        """Start with the time to write and send an answer."""
        self._late_s = deque([0.0] * _WINDOW_BATCHES, _WINDOW_BATCHES)
        self.seconds = _REPLY_S

    def learn(self, late_s: float) -> None:
        """Add the seconds between the predicted and the real end of a batch; negative if the batch was early."""
        self._late_s.append(late_s)
        self.seconds = _REPLY_S + max(0.0, sorted(self._late_s)[_IN_TIME_BATCHES - 1])
