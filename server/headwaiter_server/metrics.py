"""Prometheus metrics, fed by the events of a request's life before its reply goes out."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily

from headwaiter_server.histogram import Histogram
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.calibration import Calibration
from headwaiter_server.scheduling.cost import Shape

STAGES = ("tokenize", "queue", "assemble", "compute", "respond")

_SECONDS = (*(0.00025 * 2**power for power in range(17)), 30.0)
_TOKENS = tuple(float(2**power) for power in range(18))
_SEQUENCES = tuple(float(2**power) for power in range(13))
_RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_ERRORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# The time at which each counter was made doubles the page, and nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Queue(Protocol):
    """The state of the queue, read when metrics are scraped."""

    @property
    def queued_sequences(self) -> int:
        """How many sequences wait."""
        ...

    @property
    def queued_tokens(self) -> int:
        """How many tokens wait."""
        ...

    @property
    def estimated_wait_s(self) -> float:
        """When a sequence that came now would start."""
        ...


class Recorder:
    """Counts and times what the server does.

    Attributes:
        registry: what the metrics port serves.
        last_received_s: when the last request came, on `time.monotonic`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.last_received_s = float("-inf")
        self._model = ""
        requests = Counter(
            "headwaiter_requests", "Requests answered.", ["model", "method", "code"], registry=self.registry
        )
        # prometheus_client looks labels up with a lock and a check of each.
        self._requests = cache(requests.labels)
        self._durations = self._histogram(
            "request_duration_seconds", "From a request's arrival to its reply.", _SECONDS, "model", "method"
        )
        stages = self._histogram(
            "stage_duration_seconds", "Stages of a request, which add up to its duration.", _SECONDS, "stage"
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._batch_sequences = self._histogram("batch_sequences", "Sequences in a batch.", _SEQUENCES).labels()
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch.", _TOKENS).labels()
        self._batch_padding = self._histogram(
            "batch_padding_ratio", "Share of a batch's attention cells that no sequence needs.", _RATIOS
        ).labels()
        self._cost_error = self._histogram(
            "batch_cost_error_ratio", "Difference between a batch's predicted and actual time, by the actual.", _ERRORS
        ).labels()
        closed = Counter(
            "headwaiter_batches_closed", "Batches, by why they were no larger.", ["reason"], registry=self.registry
        )
        self._closed = cache(closed.labels)
        self._available = Gauge(
            "headwaiter_device_available", "1 while at least one device is in order.", registry=self.registry
        )
        self._refused = Counter(
            "headwaiter_refused", "Requests refused before they were queued.", ["reason"], registry=self.registry
        )
        self._expired = Counter(
            "headwaiter_expired", "Sequences dropped unrun because their deadline passed.", registry=self.registry
        )
        self._inflight = Gauge("headwaiter_inflight_requests", "Requests being answered.", registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"headwaiter_{name}", text, bounds, self.registry, labels)

    def serving(self, model: Model, calibration: Calibration, queue: Queue) -> None:
        """A model is ready, with a queue before it."""
        self._model = model.bundle.manifest.name
        self._available.set(1)
        self.registry.register(_QueueCollector(queue))
        self.registry.register(_ModelCollector(model))
        self.registry.register(_CalibrationCollector(calibration))

    def received(self) -> None:
        """A request has come."""
        self.last_received_s = time.monotonic()
        self._inflight.inc()

    def refused(self, reason: str) -> None:
        """A request was turned away before it was queued."""
        self._refused.labels(reason).inc()

    def stages(self, seconds: dict[str, float]) -> None:
        """A request has been through its stages."""
        for stage, duration_s in seconds.items():
            self._stages[stage].observe(duration_s)

    def finished(self, method: str, code: str, duration_s: float) -> None:
        """A request has its reply or its error."""
        self._requests(self._model, method, code).inc()
        self._durations.labels(self._model, method).observe(duration_s)
        self._inflight.dec()

    def available(self, available: bool) -> None:
        """The last device died, or one is back."""
        self._available.set(available)

    def batch_closed(self, reason: str) -> None:
        """A batch was planned, and no larger for this reason."""
        self._closed(reason).inc()

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        """A batch has run, and took so long where so much was expected."""
        self._batch_sequences.observe(shape.sequences)
        self._batch_tokens.observe(shape.tokens)
        self._batch_padding.observe(shape.padding_ratio)
        if actual_s > 0:  # else the clock is too coarse to tell
            self._cost_error.observe(abs(predicted_s - actual_s) / actual_s)

    def expired(self, sequences: int) -> None:
        """Sequences were dropped, their deadline past."""
        self._expired.inc(sequences)


class _QueueCollector:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("headwaiter_queue_sequences", "Sequences waiting.", self._queue.queued_sequences)
        yield GaugeMetricFamily("headwaiter_queue_tokens", "Tokens waiting.", self._queue.queued_tokens)
        yield GaugeMetricFamily(
            "headwaiter_estimated_wait_seconds",
            "When a sequence that came now would start.",
            self._queue.estimated_wait_s,
        )


class _ModelCollector:
    def __init__(self, model: Model) -> None:
        self._model = model

    def collect(self) -> Iterator[GaugeMetricFamily]:
        model = self._model
        info = GaugeMetricFamily(
            "headwaiter_model_info",
            "The model being served; always 1.",
            labels=("model", "digest", "provider", "graph"),
        )
        info.add_metric((model.bundle.manifest.name, model.bundle.digest, model.provider, model.graph_file), 1)
        yield info
        check = GaugeMetricFamily(
            "headwaiter_self_check",
            "Difference to PyTorch over the golden inputs, measured at start-up.",
            labels=("measure",),
        )
        for measure, value in asdict(model.self_check).items():
            check.add_metric((measure,), value)
        yield check
        fallback = GaugeMetricFamily(
            "headwaiter_provider_fallback", "1 when the server runs on the CPU because CUDA did not work."
        )
        fallback.add_metric((), float(bool(model.fallback_reason)))
        yield fallback


class _CalibrationCollector:
    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def collect(self) -> Iterator[GaugeMetricFamily]:
        calibration, cost = self._calibration, self._calibration.cost
        terms = GaugeMetricFamily(
            "headwaiter_batch_cost_seconds",
            "What a batch costs: its launch, and each of its tokens, padded rows and attention cells.",
            labels=("term",),
        )
        for term in ("launch", "token", "padded", "cell"):
            terms.add_metric((term,), getattr(cost, f"{term}_s"))
        yield terms
        yield GaugeMetricFamily("headwaiter_token_budget", "Most tokens in a batch.", calibration.limits.tokens)
        yield GaugeMetricFamily(
            "headwaiter_service_tokens_per_second",
            "Tokens a second in full batches, as measured before serving.",
            calibration.service_tokens_per_s,
        )
        yield GaugeMetricFamily(
            "headwaiter_calibration_error_ratio",
            "Median difference between predicted and measured time of the batches timed before serving, by the latter.",
            calibration.error_ratio,
        )
