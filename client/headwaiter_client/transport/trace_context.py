"""Pass the trace context of the caller on to the server, if the program uses OpenTelemetry."""

import sys
from typing import Any

from headwaiter_client.transport.retries import Metadata


def with_trace_context(metadata: Metadata) -> Metadata:
    """Return the metadata of a call, with the `traceparent` of W3C Trace Context of the span in which the call is made.

    A `traceparent` that the metadata already has is kept. `tracestate` is left out: the server ignores it, and it may
    come from a stranger, and be larger than gRPC accepts.
    """
    # A program that has a span has imported this; the client itself never imports OpenTelemetry first.
    if "opentelemetry.trace" not in sys.modules or any(key == "traceparent" for key, _ in metadata):
        return metadata
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return (*metadata, *((key, value) for key, value in headers.items() if key == "traceparent"))


def has_span() -> bool:
    """Return whether the caller is in a span of a trace."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    return trace is not None and bool(trace.get_current_span().get_span_context().is_valid)
