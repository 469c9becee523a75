"""Record the Prometheus metrics of each version of each model."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headwaiter_proto.encoder_pb2 import Timings
from headwaiter_server.metrics.totals import ModelStatistics
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import Calibration, LearntCost, Shape
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.planner import CloseReason

STAGES = ("tokenize", "queue", "assemble", "compute", "respond")
_MODEL_LABELS = ("model", "version")

# Upper bounds of histogram buckets.
_SECONDS = (*(0.00025 * 2**power for power in range(17)), 30.0)
_TOKENS = tuple(float(2**power) for power in range(18))
_SEQUENCES = tuple(float(2**power) for power in range(13))
_RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_ERROR_RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


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


class MetricFamilies:
    """The metrics that have a series for each version of each model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = self._counter("requests", "Requests answered, with a reply or an error.", "method", "code")
        self.request_durations = self._histogram(
            "request_duration_seconds", "Time from a request's arrival to its reply.", _SECONDS, "method"
        )
        self.stages = self._histogram("stage_duration_seconds", "Time of each stage of Encode.", _SECONDS, "stage")
        self.attend_stages = self._histogram(
            "attend_stage_duration_seconds", "Time of each stage of Attend.", _SECONDS, "stage"
        )
        self.batch_sequences = self._histogram("batch_sequences", "Sequences in a batch.", _SEQUENCES)
        self.batch_tokens = self._histogram("batch_tokens", "Tokens in a batch.", _TOKENS)
        self.batch_padding = self._histogram(
            "batch_padding_ratio", "Share of a batch's attention cells that are padding.", _RATIOS
        )
        self.cost_error = self._histogram(
            "batch_cost_error_ratio", "abs(predicted - actual) / actual run time of a batch.", _ERROR_RATIOS
        )
        self.closed_batches = self._counter(
            "batches_closed", "Batches by the reason why they are not larger.", "reason"
        )
        self.failed_batches = self._counter(
            "batches_failed", "Batches that failed, by the cause that was found.", "reason"
        )
        self.expired = self._counter("expired", "Sequences dropped because their deadline passed before they ran.")
        self.info = self._gauge("model_info", "A served model; always 1.", "digest", "provider", "graph")
        self.self_check = self._gauge(
            "self_check", "Differences from PyTorch on the golden inputs at start-up.", "measure"
        )
        self.fallback = self._gauge(
            "provider_fallback", "1 if the model runs on the CPU because CUDA did not work, else 0."
        )
        self.cost_terms = self._gauge(
            "batch_cost_seconds", "Cost of a launch, a token, a padded token, an attention cell, a hidden row.", "term"
        )
        self.token_budget = self._gauge("token_budget", "Current maximum of tokens in a batch.")
        self.limits_ratio = self._gauge(
            "batch_limits_ratio", "Current batch limits / limits before serving; less than 1 if memory is short."
        )
        self.cost_correction = self._gauge(
            "cost_correction_ratio", "Median of measured / predicted time of the latest batches."
        )
        self.service_rate = self._gauge(
            "service_tokens_per_second", "Tokens per second of full batches, measured before serving."
        )
        self.calibration_error = self._gauge(
            "calibration_error_ratio",
            "Median of abs(predicted - measured) / measured run time of the batches timed before serving.",
        )
        self.queue_sequences = self._gauge("queue_sequences", "Sequences in the queue.")
        self.queue_tokens = self._gauge("queue_tokens", "Tokens of the sequences in the queue.")
        self.estimated_wait = self._gauge("estimated_wait_seconds", "Wait estimate of a sequence that arrives now.")

    def remove(self, name: str, version: str) -> None:
        """Remove the series of one version of a model."""
        for family in vars(self).values():
            if isinstance(family, Histogram | Counter | Gauge):
                family.remove_by_labels({"model": name, "version": version})

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"headwaiter_{name}", description, (*_MODEL_LABELS, *labels), registry=self._registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"headwaiter_{name}", description, (*_MODEL_LABELS, *labels), registry=self._registry)

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        names = (*_MODEL_LABELS, *labels)
        return Histogram(f"headwaiter_{name}", description, names, buckets=bounds, registry=self._registry)


class ModelRecorder:
    """Counts and times the sequences and batches of one version of a model.

    Args:
        families: the metrics.
        name: name of the model.
        version: version of the model.

    Attributes:
        statistics: the totals for the Open Inference Protocol.
    """

    def __init__(self, families: MetricFamilies, name: str, version: str) -> None:
        self._families = families
        self._labels = labels = (name, version)
        self._stages = {stage: families.stages.labels(*labels, stage) for stage in STAGES}
        self._batch_sequences = families.batch_sequences.labels(*labels)
        self._batch_tokens = families.batch_tokens.labels(*labels)
        self._batch_padding = families.batch_padding.labels(*labels)
        self._cost_error = families.cost_error.labels(*labels)
        self._closed_batches = {reason: families.closed_batches.labels(*labels, reason) for reason in CloseReason}
        self._failed_batches = {cause: families.failed_batches.labels(*labels, cause) for cause in FailureCause}
        self._expired = families.expired.labels(*labels)
        self.statistics = ModelStatistics()

    def serving(
        self,
        model: ModelDescription,
        calibration: Calibration,
        queue: QueueState,
        estimated_wait_s: Callable[[], float],
    ) -> None:
        """Expose the description, the measured cost and the queue of a model that is ready to serve."""
        families, labels = self._families, self._labels
        families.info.labels(*labels, model.bundle.digest, model.provider, model.graph_file).set(1)
        for measure, value in asdict(model.self_check).items():
            families.self_check.labels(*labels, measure).set(value)
        families.fallback.labels(*labels).set(bool(model.fallback_reason))
        for term in ("launch", "token", "padded", "cell", "hidden_row"):
            families.cost_terms.labels(*labels, term).set(getattr(calibration.cost, f"{term}_s"))
        limits = queue.limits
        families.token_budget.labels(*labels).set_function(lambda: limits.current.tokens)
        largest_tokens = calibration.limits.tokens
        families.limits_ratio.labels(*labels).set_function(lambda: limits.current.tokens / largest_tokens)
        families.cost_correction.labels(*labels).set_function(lambda: queue.learnt.ratio)
        families.service_rate.labels(*labels).set(calibration.service_tokens_per_s)
        families.calibration_error.labels(*labels).set(calibration.error_ratio)
        families.queue_sequences.labels(*labels).set_function(lambda: queue.queued_sequences)
        families.queue_tokens.labels(*labels).set_function(lambda: queue.queued_tokens)
        families.estimated_wait.labels(*labels).set_function(estimated_wait_s)

    def stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Encode request."""
        stages_s = {stage: getattr(timings, f"{stage}_s") for stage in STAGES}
        for stage, seconds in stages_s.items():
            self._stages[stage].observe(seconds)
        self.statistics.request_answered(timings.total_s, stages_s)

    def request_failed(self, duration_s: float) -> None:
        """Record that an Encode request failed after its model was found."""
        self.statistics.request_failed(duration_s)

    def attend_stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Attend request, which never runs in a batch."""
        for stage in STAGES:
            self._families.attend_stages.labels(*self._labels, stage).observe(getattr(timings, f"{stage}_s"))

    def batch_planned(self, reason: CloseReason) -> None:
        """Record that a batch was planned, and why the batch is not larger."""
        self._closed_batches[reason].inc()

    def batch_failed(self, cause: FailureCause) -> None:
        """Record that a batch failed, and why."""
        self._failed_batches[cause].inc()

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float = 0.0) -> None:
        """Record a batch that ran, its predicted and actual run time, and the time that its packing took."""
        self.statistics.batch_ran(shape.sequences, packing_s, actual_s)
        self._batch_sequences.observe(shape.sequences)
        self._batch_tokens.observe(shape.tokens)
        self._batch_padding.observe(shape.padding_ratio)
        if actual_s > 0:  # A coarse clock may measure 0.
            self._cost_error.observe(abs(predicted_s - actual_s) / actual_s)

    def expired(self, sequences: int) -> None:
        """Record that sequences were dropped because their deadline had passed or was too near."""
        self._expired.inc(sequences)
