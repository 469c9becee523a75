"""Record the Prometheus metrics of each version of each model."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from typing import Protocol

from headwaiter_proto.encoder_pb2 import Timings
from headwaiter_server.metrics.definitions import ModelMetrics
from headwaiter_server.metrics.totals import ModelStatistics
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import Calibration, LearntCost, Shape
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.planner import CloseReason

STAGES = ("tokenize", "queue", "assemble", "compute", "respond")


class QueueState(Protocol):
    """The state of a model's queue, read at each scrape."""

    @property
    def queued_sequences(self) -> int:
        """Number of waiting sequences."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Number of tokens of the waiting sequences."""
        ...

    @property
    def limits(self) -> AdaptiveLimits:
        """The current batch limits, and the limits before serving."""
        ...

    @property
    def learnt(self) -> LearntCost:
        """What was learnt about the cost of batches."""
        ...


class ModelRecorder:
    """Counts and times the sequences and batches of one version of a model.

    Args:
        metrics: the metrics of all models.
        name: name of the model.
        version: version of the model.

    Attributes:
        statistics: the totals for the Open Inference Protocol.
    """

    def __init__(self, metrics: ModelMetrics, name: str, version: str) -> None:
        self._metrics = metrics
        self._labels = labels = (name, version)
        # Series begin with their first use, because a front end sends all series that it has, and uses few of them.
        self._stages = cache(partial(metrics.stages.labels, *labels))
        self._batch_runs = cache(partial(metrics.batch_runs.labels, *labels))
        self._batch_sequences = cache(partial(metrics.batch_sequences.labels, *labels))
        self._batch_tokens = cache(partial(metrics.batch_tokens.labels, *labels))
        self._batch_padding = cache(partial(metrics.batch_padding.labels, *labels))
        self._cost_error = cache(partial(metrics.cost_error.labels, *labels))
        self._closed_batches = cache(partial(metrics.closed_batches.labels, *labels))
        self._failed_batches = cache(partial(metrics.failed_batches.labels, *labels))
        self._expired = cache(partial(metrics.expired.labels, *labels))
        self.statistics = ModelStatistics()

    def serving(
        self,
        model: ModelDescription,
        calibration: Calibration,
        queue: QueueState,
        estimated_wait_s: Callable[[], float],
    ) -> None:
        """Expose the description, the measured cost and the queue of a model that is ready to serve."""
        metrics, labels = self._metrics, self._labels
        # These series begin at 0: Prometheus' rate() does not see the first increase of a series that begins at 1.
        for stage in STAGES:
            self._stages(stage)
        for reason in CloseReason:
            self._closed_batches(reason)
        for cause in FailureCause:
            self._failed_batches(cause)
        batches = (self._batch_runs, self._batch_sequences, self._batch_tokens, self._batch_padding, self._cost_error)
        for series in (*batches, self._expired):
            series()
        metrics.info.labels(*labels, model.bundle.digest, model.provider, model.graph_file).set(1)
        for measure, value in asdict(model.self_check).items():
            metrics.self_check.labels(*labels, measure).set(value)
        metrics.fallback.labels(*labels).set(bool(model.fallback_reason))
        for term in ("launch", "token", "padded", "cell", "hidden_row"):
            metrics.cost_terms.labels(*labels, term).set(getattr(calibration.cost, f"{term}_s"))
        limits = queue.limits
        metrics.token_budget.labels(*labels).set_function(lambda: limits.current.tokens)
        largest_tokens = calibration.limits.tokens
        metrics.limits_ratio.labels(*labels).set_function(lambda: limits.current.tokens / largest_tokens)
        metrics.cost_correction.labels(*labels).set_function(lambda: queue.learnt.ratio)
        metrics.service_rate.labels(*labels).set(calibration.service_tokens_per_s)
        metrics.calibration_error.labels(*labels).set(calibration.error_ratio)
        metrics.queue_sequences.labels(*labels).set_function(lambda: queue.queued_sequences)
        metrics.queue_tokens.labels(*labels).set_function(lambda: queue.queued_tokens)
        metrics.estimated_wait.labels(*labels).set_function(estimated_wait_s)

    def stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Encode request."""
        stages_s = {stage: getattr(timings, f"{stage}_s") for stage in STAGES}
        for stage, seconds in stages_s.items():
            self._stages(stage).observe(seconds)
        self.statistics.request_answered(timings.total_s, stages_s)

    def request_failed(self, duration_s: float) -> None:
        """Record that an Encode request failed after its model was found."""
        self.statistics.request_failed(duration_s)

    def attend_stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Attend request, which never runs in a batch."""
        for stage in STAGES:
            self._metrics.attend_stages.labels(*self._labels, stage).observe(getattr(timings, f"{stage}_s"))

    def batch_planned(self, reason: CloseReason) -> None:
        """Record that a batch was planned, and why the batch is not larger."""
        self._closed_batches(reason).inc()

    def batch_failed(self, cause: FailureCause) -> None:
        """Record that a batch failed, and why."""
        self._failed_batches(cause).inc()

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float = 0.0) -> None:
        """Record a batch that ran, its predicted and actual run time, and the time that its packing took."""
        self.statistics.batch_ran(shape.sequences, packing_s, actual_s)
        self._batch_runs().observe(actual_s)
        self._batch_sequences().observe(shape.sequences)
        self._batch_tokens().observe(shape.tokens)
        self._batch_padding().observe(shape.padding_ratio)
        if actual_s > 0:  # A coarse clock may measure 0.
            self._cost_error().observe(abs(predicted_s - actual_s) / actual_s)

    def device_ran(self, device: int, seconds: float) -> None:
        """Record that a device ran a batch for this long, whether the batch failed or not."""
        self._metrics.busy.labels(*self._labels, str(device)).inc(seconds)

    def expired(self, sequences: int) -> None:
        """Record that sequences were dropped because their deadline had passed or was too near."""
        self._expired().inc(sequences)
