"""Pass the trace context of the caller on to the server, if the program uses OpenTelemetry."""

import sys

from headwaiter_client.transport.retries import Metadata


def with_trace_context(metadata: Metadata) -> Metadata:
    """Return the metadata of a call, with the headers of W3C Trace Context of the span in which the call is made.

    Headers that the metadata already has are kept.
    """
    # A program that has a span has imported this; the client itself never imports OpenTelemetry first.
    if "opentelemetry.trace" not in sys.modules:
        return metadata
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    if not headers or any(key == "traceparent" for key, _ in metadata):
        return metadata
    return (*metadata, *headers.items())
