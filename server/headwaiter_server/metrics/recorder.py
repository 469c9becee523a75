"""Record the server's Prometheus metrics."""

import time
from collections.abc import Collection, Iterable, Sized
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter

from headwaiter_server.metrics.definitions import GpuMemory, ModelMetrics, ProcessMetrics, ServerMetrics, TenantMetrics
from headwaiter_server.metrics.model_recorder import ModelRecorder

if TYPE_CHECKING:
    from headwaiter_server.tracing.spans import Tracing

_OK = "OK"
# The codes that alerts watch. Their series start at 0: Prometheus' rate() does not see the first increase of a series
# that starts at 1.
_WATCHED_CODES = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


class Recorder:
    """Counts and times requests.

    Attributes:
        registry: the metrics that the metrics port serves.
        last_received_s: arrival time of the latest request on `time.monotonic`; −infinity before the first.
        tracing: makes the spans of requests and batches; None without traces.
    """

    def __init__(self, gpus: Collection[int] = (), process: str = "engine", tracing: "Tracing | None" = None) -> None:
        """Register the metrics.

        Args:
            gpus: numbers of the GPUs whose memory the metrics show.
            process: the name of this process.
            tracing: makes the spans of this process.
        """
        self.tracing = tracing
        self.registry = CollectorRegistry()
        self.registry.register(GpuMemory(gpus))
        self.registry.register(ProcessMetrics(process))
        self._process = process
        self.last_received_s = float("-inf")
        self._model_metrics = ModelMetrics(self.registry)
        # Cached, because prometheus_client takes a lock and checks each label at every look-up.
        self._requests = cache(self._requests_with)
        self._request_durations = cache(self._model_metrics.request_durations.labels)
        server_metrics = ServerMetrics(self.registry)
        self._refused, self._inflight = server_metrics.refused, server_metrics.inflight
        tenant_metrics = TenantMetrics(self.registry)
        self._tenant_requests = cache(tenant_metrics.requests.labels)
        self._tenant_durations = cache(tenant_metrics.request_durations.labels)
        self._tenant_tokens = cache(tenant_metrics.tokens.labels)
        self._tenant_refused = tenant_metrics.refused
        self._certificate_expiry = server_metrics.certificate_expiry

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

    def refused(self, reason: str, tenant: str = "") -> None:
        """Record that a request, perhaps of a named tenant, was refused before it entered the queue."""
        self._refused.labels(reason).inc()
        if tenant:
            self._tenant_refused.labels(tenant, reason).inc()

    def finished(
        self,
        model: tuple[str, str],
        method: str,
        code: str,
        duration_s: float,
        exemplar: dict[str, str] | None = None,
        tenant: str = "",
    ) -> None:
        """Record that a request was answered, with a reply or an error, and time it if it was a reply.

        Args:
            model: name and version of the model; empty strings if no model was found for the request.
            method: the gRPC method.
            code: name of the gRPC code.
            duration_s: seconds since the arrival of the request.
            exemplar: the trace and the span of a request that is sampled.
            tenant: name of the tenant; empty for a request without a named token.
        """
        self._requests(*model, method, code).inc()
        # A refusal takes a millisecond. Counted in, refusals would lower the quantiles when the answers are slowest.
        if code == _OK:
            self._request_durations(*model, method).observe(duration_s, exemplar)
        if tenant:
            self._tenant_requests(tenant, code).inc()
            if code == _OK:
                self._tenant_durations(tenant).observe(duration_s)
        self._inflight.dec()

    def encoded(self, tenant: str, sequences: Iterable[Sized]) -> None:
        """Record the tokens of an encoded request; does nothing for a request without a named token."""
        if tenant:
            self._tenant_tokens(tenant).inc(sum(map(len, sequences)))

    def certificate_read(self, expiry_unix_s: float | None) -> None:
        """Record when the certificate that this process uses expires; None if that is not known."""
        self._certificate_expiry.clear()
        if expiry_unix_s is not None:
            self._certificate_expiry.labels(self._process).set(expiry_unix_s)

    async def send_last_spans(self) -> None:
        """Send the spans that wait; make no spans afterwards."""
        if self.tracing is not None:
            await self.tracing.send_last_spans()

    def _requests_with(self, model: str, version: str, method: str, code: str) -> Counter:
        """Return the counter of the requests that ended with a code."""
        requests = self._model_metrics.requests
        for watched in _WATCHED_CODES:
            requests.labels(model, version, method, watched)
        return requests.labels(model, version, method, code)
