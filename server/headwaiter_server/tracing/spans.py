"""The spans of a process: of requests with their stages, and of batches with links to their requests.

OpenTelemetry's SDK and exporter read the standard environment variables. A thread of the SDK sends ended spans, and
drops spans while too many wait, so a receiver that is slow or down delays no request.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib.metadata import version
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headwaiter_proto import encoder_pb2, open_inference_pb2
from headwaiter_server.scheduling.job import BatchTimes, Interval
from headwaiter_server.scheduling.queued_request import Batch, shape_of

# The longest time to send the last spans when the process ends.
_LAST_SPANS_S = 1.0
# OpenTelemetry logs several lines for each attempt to reach a receiver that is down. gRPC and urllib3, which send the
# spans, log a traceback for each reply that they cannot read; nothing else in a server uses these two loggers.
_SENDING_LOGGERS = ("opentelemetry", "grpc._common", "urllib3")
_LOG_INTERVAL_S = 60.0
# A request may run in hundreds of batches. With more stages than this, it has only the seconds of each stage.
_MAX_STAGES = 128
# A shorter time between two stages is work of the server itself, and no wait.
_SHORTEST_WAIT_S = 5e-5
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_PROPAGATOR = TraceContextTextMapPropagator()
# The methods of each service, by the name under which the server offers the service.
_SERVICES = {
    "headwaiter.v1.Encoder": encoder_pb2.DESCRIPTOR.services_by_name["Encoder"],
    "inference.GRPCInferenceService": open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
}
_RPC_METHODS = {each.name: f"{name}/{each.name}" for name, service in _SERVICES.items() for each in service.methods}
# The codes that are errors of the server, by the semantic conventions of gRPC.
_SERVER_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
Attributes = Mapping[str, str | int | float]


class Tracing:
    """Makes the spans of one process.

    Args:
        process: the name of the process.
        scheme: `http` or `https`, for requests over HTTP.

    Raises:
        Exception: OpenTelemetry cannot use one of its variables; the classes of its errors vary.
    """

    def __init__(self, process: str, scheme: str) -> None:
        _log_rarely()
        resource = _resource(process)
        self._processor = BatchSpanProcessor(_exporter())
        # A batch and a stage are sampled if one of their requests is.
        by_environment, always = (
            TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=limits)
            for sampler, limits in ((None, None), (ALWAYS_ON, SpanLimits(max_links=SpanLimits.UNSET)))
        )
        for each in (by_environment, always):
            each.add_span_processor(self._processor)
        self._request_tracer, self._always_tracer = (
            each.get_tracer("headwaiter", version("headwaiter")) for each in (by_environment, always)
        )
        self._name_and_attributes = cache(partial(_name_and_attributes, scheme))

    def start_request(self, method: str, traceparent: str, arrived_s: float) -> "RequestSpan | None":
        """Return the span of a request, whose parent is the caller's span; None if the request is not sampled.

        Args:
            method: name of the method.
            traceparent: a valid header of W3C Trace Context; empty without one.
            arrived_s: when the request arrived.
        """
        parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else Context()
        name, attributes = self._name_and_attributes(method)
        clock = _UnixClock()
        span = self._request_tracer.start_span(
            name, parent, SpanKind.SERVER, attributes, start_time=clock.ns(arrived_s)
        )
        return RequestSpan(span, self._always_tracer, clock, arrived_s) if span.is_recording() else None

    def record_batch(
        self,
        model: str,
        model_version: str,
        sequences: Batch,
        device: int,
        predicted_s: float,
        whole: Interval,
        measured_s: float | None,
        error: str,
    ) -> bytes:
        """Make the span of a batch that ran or failed, and return its ids; no ids if no request of it is sampled."""
        requests = {sequence.request for sequence in sequences}
        links = [Link(_span_context(each.job.trace)) for each in requests if each.job.trace]
        if not links:
            return b""
        shape, clock = shape_of(sequences), _UnixClock()
        attributes: Attributes = {
            "gen_ai.request.model": model,
            "headwaiter.model.version": model_version,
            "headwaiter.device": device,
            "headwaiter.batch.requests": len(requests),
            "headwaiter.batch.sequences": shape.sequences,
            "headwaiter.batch.tokens": shape.tokens,
            "headwaiter.batch.padding_ratio": shape.padding_ratio,
            "headwaiter.batch.predicted_s": predicted_s,
        }
        span = self._always_tracer.start_span(
            "batch", Context(), attributes=attributes, links=links, start_time=clock.ns(whole.start_s)
        )
        if measured_s is not None:
            span.set_attribute("headwaiter.batch.measured_s", measured_s)
        if error:
            _set_error(span, error, "the batch failed")
        span.end(clock.ns(whole.end_s))
        return _ids(span)

    async def send_last_spans(self) -> None:
        """Send the spans that wait, for at most `_LAST_SPANS_S`; make no spans afterwards."""
        sending = Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _LAST_SPANS_S)


class RequestSpan:
    """The span of a request that is sampled.

    Attributes:
        ids: the trace and the span, for the links of batches.
    """

    def __init__(self, span: Span, tracer: Tracer, clock: "_UnixClock", arrived_s: float) -> None:
        self.ids = _ids(span)
        self._span, self._tracer, self._clock, self._arrived_s = span, tracer, clock, arrived_s
        self._stages: list[tuple[Interval, str, bytes]] = []
        self._completed_s = 0.0

    @property
    def trace_id(self) -> str:
        """The id of the trace, in hexadecimal."""
        return self.ids[:_TRACE_BYTES].hex()

    @property
    def exemplar(self) -> dict[str, str]:
        """The ids, as the labels of an exemplar."""
        return {"trace_id": self.trace_id, "span_id": self.ids[_TRACE_BYTES:].hex()}

    def note_input(self, tokens: int, sequences: int, *, embeds: bool) -> None:
        """Note the size of a request to encode, and whether its answer has vectors, not only scores."""
        operation = {"gen_ai.operation.name": "embeddings"} if embeds else {}
        self._span.set_attributes(
            {
                **operation,
                "gen_ai.provider.name": "headwaiter",
                "gen_ai.usage.input_tokens": tokens,
                "headwaiter.sequences": sequences,
            }
        )

    def note_stages(
        self, durations: Mapping[str, float], tokenizing: Interval, batches: Iterable[BatchTimes], completed_s: float
    ) -> None:
        """Note the stages of a request whose reply is ready; see `set_timings`."""
        self._span.set_attributes({f"headwaiter.{stage}_s": seconds for stage, seconds in durations.items()})
        self._stages.append((tokenizing, "tokenize", b""))
        for batch in batches:
            self._stages.append((batch.packing, "assemble", b""))
            self._stages.append((batch.run, "compute", batch.span))
        self._completed_s = completed_s

    def end(self, end_s: float, status: str | int | None, attributes: Attributes, message: str) -> None:
        """End the span, and make those of its stages.

        Args:
            end_s: when the outcome was known.
            status: the name of the gRPC code, or the status over HTTP; None for a caller over HTTP that has gone.
            attributes: what else is known of the request.
            message: the message of the error; empty without an error.
        """
        span = self._span
        span.set_attributes(attributes)
        if self._stages:
            parent, whole = set_span_in_context(span, Context()), Interval(self._arrived_s, end_s)
            self._stages.append((Interval(self._completed_s, end_s), "respond", b""))
            waits = gaps(whole, [interval for interval, _, _ in self._stages])
            self._stages += [(each, "queue", b"") for each in waits if each.seconds >= _SHORTEST_WAIT_S]
            for interval, stage, batch in sorted(self._stages) if len(self._stages) <= _MAX_STAGES else ():
                self._add_stage(parent, stage, interval, batch)
        if status is not None:
            span.set_attribute(f"{'http' if isinstance(status, int) else 'rpc'}.response.status_code", status)
            if status >= 500 if isinstance(status, int) else status in _SERVER_ERRORS:
                _set_error(span, str(status), message)
        span.end(self._clock.ns(end_s))

    def _add_stage(self, parent: Context, stage: str, interval: Interval, batch: bytes) -> None:
        """Make the span of a stage; a stage that ran in a batch with a span links to the batch."""
        if interval.seconds > 0:
            links = [Link(_span_context(batch))] if batch else None
            span = self._tracer.start_span(stage, parent, links=links, start_time=self._clock.ns(interval.start_s))
            span.end(self._clock.ns(interval.end_s))


def gaps(whole: Interval, intervals: Iterable[Interval]) -> list[Interval]:
    """Return the parts of an interval that no other interval covers, in order."""
    found, reached_s = [], whole.start_s
    for start_s, end_s in sorted(intervals):
        if start_s > reached_s:
            found.append(Interval(reached_s, start_s))
        reached_s = max(reached_s, end_s)
    return [*found, Interval(reached_s, whole.end_s)] if reached_s < whole.end_s else found


class _UnixClock:
    """Turns times of `time.monotonic` into Unix times.

    Each request and each batch measures the difference of the two clocks once: its own times then agree with each
    other, even if the clock of the host is set meanwhile, and later times follow the host's clock.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def ns(self, monotonic_s: float) -> int:
        """Return a time in nanoseconds since 1970."""
        return round(monotonic_s * 1e9) + self._offset_ns


def _set_error(span: Span, error_type: str, description: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, description)


def _ids(span: Span) -> bytes:
    """Return the ids of a trace and a span, which another process can link to."""
    context = span.get_span_context()
    return context.trace_id.to_bytes(_TRACE_BYTES) + context.span_id.to_bytes(_SPAN_BYTES)


def _span_context(ids: bytes) -> SpanContext:
    trace, span = int.from_bytes(ids[:_TRACE_BYTES]), int.from_bytes(ids[_TRACE_BYTES:])
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _name_and_attributes(scheme: str, method: str) -> tuple[str, Attributes]:
    """Return the name and the attributes of the span of a method, by the semantic conventions of HTTP and of RPC."""
    verb, _, route = method.partition(" ")
    if route:
        http = {"http.request.method": verb, "http.route": route, "url.path": route, "url.scheme": scheme}
        return method, http
    full_name = _RPC_METHODS.get(method, "_OTHER")
    return _RPC_METHODS.get(method, "grpc"), {"rpc.system.name": "grpc", "rpc.method": full_name}


def _resource(process: str) -> Resource:
    """Return what the spans say of this process; variables of the environment take precedence."""
    own = {
        "service.name": "headwaiter",
        "service.version": version("headwaiter"),
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        "headwaiter.process": process,
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


def _exporter() -> SpanExporter:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := os.environ.get(name):
            break
    else:
        protocol = "grpc"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    raise ValueError(f"{name} is {protocol!r}, and not grpc or http/protobuf")


class _OneLineAMinute(logging.Handler):
    """Passes a line on to the log, unless the same place in the code has logged another one in the last minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now_s, place = time.monotonic(), f"{record.pathname}:{record.lineno}"
        if now_s >= self._next_s.get(place, 0.0):
            self._next_s[place] = now_s + _LOG_INTERVAL_S
            logging.getLogger().handle(record)


def _log_rarely() -> None:
    for log in map(logging.getLogger, _SENDING_LOGGERS):
        if log.propagate:
            log.propagate = False
            log.addHandler(_OneLineAMinute())
    # The SDK makes a record for each span that it drops, in the event loop.
    logging.getLogger("opentelemetry.sdk._shared_internal").setLevel(logging.ERROR)
