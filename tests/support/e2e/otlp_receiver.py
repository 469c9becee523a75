"""A real OTLP receiver in the test's process, over gRPC and over HTTP."""

import http.server
import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received, with times in seconds.

    Attributes:
        ids: the ids of the trace and of the span, in hexadecimal.
        parent: the id of the parent, in hexadecimal; empty for a root.
        links: the ids of the spans that this span links to.
        failed: whether the status is an error.
    """

    name: str
    kind: int
    ids: tuple[str, str]
    parent: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    failed: bool
    resource: dict[str, Any]


class Receiver(TraceServiceServicer):
    """Keeps the spans that it receives.

    Attributes:
        spans: all spans, in the order in which they came.
        exports: number of messages.
    """

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.exports = 0

    def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:  # noqa: N802
        for process in request.resource_spans:
            resource = _values(process.resource.attributes)
            spans = [span for scope in process.scope_spans for span in scope.spans]
            self.spans += [_received(span, resource) for span in spans]
        self.exports += 1
        return ExportTraceServiceResponse()

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans with a name."""
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """Return the children of a span, by their start."""
        trace, span = parent.ids
        children = [each for each in self.spans if (each.ids[0], each.parent) == (trace, span)]
        return sorted(children, key=lambda each: each.start_s)


class _Garbler(grpc.ServerInterceptor):
    """Replaces each reply by bytes that are no message."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        return handler._replace(response_serializer=lambda _: b"\xff")


@contextmanager
def receiving_over_grpc(*, garbled: bool = False) -> Iterator[tuple[Receiver, str]]:
    """Run a receiver, and yield it with its endpoint; a garbled one sends replies that cannot be read."""
    interceptors: list[grpc.ServerInterceptor] = [_Garbler()] if garbled else []
    receiver, server = Receiver(), grpc.server(futures.ThreadPoolExecutor(2), interceptors=interceptors)
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def receiving_over_http(*, garbled: bool = False) -> Iterator[tuple[Receiver, str]]:
    """Run a receiver, and yield it with its endpoint; a garbled one sends headers that cannot be read."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reply = receiver.Export(ExportTraceServiceRequest.FromString(body), None).SerializeToString()
            self.send_response(200)
            if garbled:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n")
                return
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _received(span: Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.kind,
        (span.trace_id.hex(), span.span_id.hex()),
        span.parent_span_id.hex(),
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _values(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.code == span.status.STATUS_CODE_ERROR,
        resource,
    )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in attributes}
