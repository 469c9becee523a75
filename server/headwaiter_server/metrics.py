"""Record the server's Prometheus metrics."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from headwaiter_proto.encoder_pb2 import Timings
from headwaiter_proto.rules.errors import ERROR_BY_REASON
from headwaiter_server.histogram import Histogram
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.calibration import Calibration
from headwaiter_server.scheduling.cost import BatchLimits, Shape
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.planner import CloseReason

STAGES = ("tokenize", "queue", "assemble", "compute", "respond")

# The reasons of errors that no request has before it enters the queue. gRPC refuses messages that are too large.
_NO_REFUSALS = {"INFERENCE_FAILED", "DEADLINE_EXCEEDED", "CANCELLED", "MESSAGE_TOO_LARGE"}

# Upper bounds of histogram buckets.
_SECONDS = (*(0.00025 * 2**power for power in range(17)), 30.0)
_TOKENS = tuple(float(2**power) for power in range(18))
_SEQUENCES = tuple(float(2**power) for power in range(13))
_RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_ERROR_RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# The creation times of counters would double the size of the page, and dashboards do not use them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class QueueState(Protocol):
    """The state of the queue, read at each scrape."""

    @property
    def queued_sequences(self) -> int:
        """Number of waiting sequences."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Number of tokens of the waiting sequences."""
        ...

    @property
    def estimated_wait_s(self) -> float:
        """Wait estimate of a sequence that arrives now, in seconds."""
        ...

    @property
    def limits(self) -> BatchLimits:
        """The batch limits that hold now."""
        ...

    @property
    def cost_corrections(self) -> Mapping[str, float]:
        """The latest measured / predicted times: `batch`, `hidden_batch` and `queue`."""
        ...


class Recorder:
    """Counts and times requests, sequences and batches.

    Attributes:
        registry: the metrics that the metrics port serves.
        last_received_s: arrival time of the latest request on `time.monotonic`; −infinity before the first.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.last_received_s = float("-inf")
        self._model = ""
        # Cached, because prometheus_client takes a lock and checks each label at every look-up.
        self._requests = cache(
            self._counter("requests", "Requests answered, with a reply or an error.", "model", "method", "code").labels
        )
        self._durations = self._histogram(
            "request_duration_seconds", "Time from a request's arrival to its reply.", _SECONDS, "model", "method"
        )
        stages = self._histogram("stage_duration_seconds", "Time of each stage of Encode.", _SECONDS, "stage")
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._attend_stages = self._histogram(
            "attend_stage_duration_seconds", "Time of each stage of Attend.", _SECONDS, "stage"
        )
        self._batch_sequences = self._histogram("batch_sequences", "Sequences in a batch.", _SEQUENCES).labels()
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch.", _TOKENS).labels()
        self._batch_padding = self._histogram(
            "batch_padding_ratio", "Share of a batch's attention cells that are padding.", _RATIOS
        ).labels()
        self._cost_error = self._histogram(
            "batch_cost_error_ratio", "abs(predicted - actual) / actual run time of a batch.", _ERROR_RATIOS
        ).labels()
        closed_batches = self._counter("batches_closed", "Batches by the reason why they are not larger.", "reason")
        self._closed_batches = {reason: closed_batches.labels(reason) for reason in CloseReason}
        failed_batches = self._counter("batches_failed", "Batches that failed, by the cause that was found.", "reason")
        self._failed_batches = {cause: failed_batches.labels(cause) for cause in FailureCause}
        self._available = self._gauge("device_available", "1 while at least one device works, else 0.")
        self._refused = self._counter("refused", "Requests refused before they entered the queue.", "reason")
        # Each reason starts at 0: Prometheus' rate() does not see the first increase of a series that starts at 1.
        for reason in ERROR_BY_REASON.keys() - _NO_REFUSALS:
            self._refused.labels(reason)
        self._expired = self._counter("expired", "Sequences dropped because their deadline passed before they ran.")
        self._inflight = self._gauge("inflight_requests", "Requests in progress.")

    def serving(self, model: Model, calibration: Calibration, queue: QueueState) -> None:
        """Expose the description, the measured cost and the queue of a model that is ready to serve."""
        manifest, cost = model.bundle.manifest, calibration.cost
        self._model = manifest.name
        self._available.set(1)
        info = self._gauge("model_info", "The served model; always 1.", "model", "digest", "provider", "graph")
        info.labels(manifest.name, model.bundle.digest, model.provider, model.graph_file).set(1)
        check = self._gauge("self_check", "Differences from PyTorch on the golden inputs at start-up.", "measure")
        for measure, value in asdict(model.self_check).items():
            check.labels(measure).set(value)
        fallback = self._gauge(
            "provider_fallback", "1 if the server runs on the CPU because CUDA did not work, else 0."
        )
        fallback.set(bool(model.fallback_reason))
        terms = self._gauge(
            "batch_cost_seconds", "Cost of a launch, a token, a padded token, an attention cell, a hidden row.", "term"
        )
        for term in ("launch", "token", "padded", "cell", "hidden_row"):
            terms.labels(term).set(getattr(cost, f"{term}_s"))
        budget = self._gauge("token_budget", "Most tokens in a batch now.")
        budget.set_function(lambda: queue.limits.tokens)
        ratio = self._gauge("batch_limits_ratio", "Batch limits now / before serving; lower if memory is short.")
        ratio.set_function(lambda: queue.limits.tokens / calibration.limits.tokens)
        correction = self._gauge(
            "cost_correction_ratio", "Median of measured / predicted time of the latest batches.", "cost"
        )
        for kind in queue.cost_corrections:
            correction.labels(kind).set_function(partial(lambda name: queue.cost_corrections[name], kind))
        rate = self._gauge("service_tokens_per_second", "Tokens per second of full batches, measured before serving.")
        rate.set(calibration.service_tokens_per_s)
        error = self._gauge(
            "calibration_error_ratio",
            "Median of abs(predicted - measured) / measured run time of the batches timed before serving.",
        )
        error.set(calibration.error_ratio)
        sequences = self._gauge("queue_sequences", "Sequences in the queue.")
        sequences.set_function(lambda: queue.queued_sequences)
        tokens = self._gauge("queue_tokens", "Tokens of the sequences in the queue.")
        tokens.set_function(lambda: queue.queued_tokens)
        wait = self._gauge("estimated_wait_seconds", "Wait estimate of a sequence that arrives now.")
        wait.set_function(lambda: queue.estimated_wait_s)

    def received(self) -> None:
        """Record that a request has arrived."""
        self.last_received_s = time.monotonic()
        self._inflight.inc()

    def refused(self, reason: str) -> None:
        """Record that a request was refused before it entered the queue."""
        self._refused.labels(reason).inc()

    def stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Encode request."""
        for stage, series in self._stages.items():
            series.observe(getattr(timings, f"{stage}_s"))

    def attend_stages(self, timings: Timings) -> None:
        """Record the duration of each stage of an Attend request, which never runs in a batch."""
        for stage in STAGES:
            self._attend_stages.labels(stage).observe(getattr(timings, f"{stage}_s"))

    def finished(self, method: str, code: str, duration_s: float) -> None:
        """Record that a request was answered, with a reply or an error."""
        self._requests(self._model, method, code).inc()
        self._durations.labels(self._model, method).observe(duration_s)
        self._inflight.dec()

    def available(self, available: bool) -> None:
        """Record whether at least one device works."""
        self._available.set(available)

    def batch_closed(self, reason: CloseReason) -> None:
        """Record that a batch was planned, and why the batch is not larger."""
        self._closed_batches[reason].inc()

    def batch_failed(self, cause: FailureCause) -> None:
        """Record that a batch failed, and why."""
        self._failed_batches[cause].inc()

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        """Record that a batch ran, with its predicted and its actual seconds."""
        self._batch_sequences.observe(shape.sequences)
        self._batch_tokens.observe(shape.tokens)
        self._batch_padding.observe(shape.padding_ratio)
        if actual_s > 0:  # A coarse clock may measure 0.
            self._cost_error.observe(abs(predicted_s - actual_s) / actual_s)

    def expired(self, sequences: int) -> None:
        """Record that sequences were dropped because their deadline had passed or was too near."""
        self._expired.inc(sequences)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"headwaiter_{name}", description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"headwaiter_{name}", description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"headwaiter_{name}", description, bounds, self.registry, labels)
