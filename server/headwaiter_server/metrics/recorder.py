"""Record the server's Prometheus metrics."""

import asyncio
import time
from collections.abc import Collection, Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headwaiter_proto.rules.errors import ERROR_BY_REASON
from headwaiter_server.metrics.model_recorder import MetricFamilies, ModelRecorder
from headwaiter_server.runtime.hardware import gpu_memory

# The error reasons that `refused` never counts.
_NO_REFUSALS = {"INFERENCE_FAILED", "DEADLINE_EXCEEDED", "CANCELLED"}
# The creation times of counters would double the size of the page, and dashboards do not use them.
disable_created_metrics()  # type: ignore[no-untyped-call]


async def write_page(registry: Collector, accept: str) -> tuple[bytes, str]:
    """Return a page of metrics and its content type; `accept` is a header of the scrape."""
    encode, content_type = choose_encoder(accept)
    # Writing all series takes milliseconds; a thread keeps the event loop free.
    return await asyncio.to_thread(encode, registry), content_type


class _GpuMemoryCollector(Collector):
    """Reads the memory of GPUs at each scrape."""

    def __init__(self, gpus: Collection[int]) -> None:
        self._gpus = gpus

    def collect(self) -> Iterator[GaugeMetricFamily]:
        used = GaugeMetricFamily("headwaiter_gpu_memory_used_bytes", "Memory in use by all processes.", labels=["gpu"])
        total = GaugeMetricFamily("headwaiter_gpu_memory_total_bytes", "Memory of the GPU.", labels=["gpu"])
        for gpu in self._gpus:
            if memory := gpu_memory(gpu):
                used.add_metric([str(gpu)], memory.used_bytes)
                total.add_metric([str(gpu)], memory.total_bytes)
        yield from (used, total)


class Recorder:
    """Counts and times requests.

    Attributes:
        registry: the metrics that the metrics port serves.
        last_received_s: arrival time of the latest request on `time.monotonic`; −infinity before the first.
    """

    def __init__(self, gpus: Collection[int] = ()) -> None:
        """Register the metrics.

        Args:
            gpus: numbers of the GPUs whose memory the metrics show.
        """
        self.registry = CollectorRegistry()
        self.registry.register(_GpuMemoryCollector(gpus))
        self.last_received_s = float("-inf")
        self._model_metrics = MetricFamilies(self.registry)
        # Cached, because prometheus_client takes a lock and checks each label at every look-up.
        self._requests = cache(self._model_metrics.requests.labels)
        self._request_durations = cache(self._model_metrics.request_durations.labels)
        self._refused = Counter(
            "headwaiter_refused", "Requests refused before they entered the queue.", ["reason"], registry=self.registry
        )
        # Each reason starts at 0: Prometheus' rate() does not see the first increase of a series that starts at 1.
        for reason in ERROR_BY_REASON.keys() - _NO_REFUSALS:
            self._refused.labels(reason)
        self._inflight = Gauge("headwaiter_inflight_requests", "Requests in progress.", registry=self.registry)

    def model(self, name: str, version: str) -> ModelRecorder:
        """Return the recorder of one version of a model."""
        return ModelRecorder(self._model_metrics, name, version)

    def remove_model(self, name: str, version: str) -> None:
        """Remove the series of one version of a model, which is no longer served."""
        self._model_metrics.remove(name, version)
        self._requests.cache_clear()
        self._request_durations.cache_clear()

    def received(self) -> None:
        """Record that a request has arrived."""
        self.last_received_s = time.monotonic()
        self._inflight.inc()

    def refused(self, reason: str) -> None:
        """Record that a request was refused before it entered the queue."""
        self._refused.labels(reason).inc()

    def finished(self, model: tuple[str, str], method: str, code: str, duration_s: float) -> None:
        """Record that a request was answered, with a reply or an error.

        Args:
            model: name and version of the model; empty strings if no model was found for the request.
            method: the gRPC method.
            code: name of the gRPC code.
            duration_s: seconds since the arrival of the request.
        """
        self._requests(*model, method, code).inc()
        self._request_durations(*model, method).observe(duration_s)
        self._inflight.dec()
