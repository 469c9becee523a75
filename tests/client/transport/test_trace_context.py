"""Each request of a call carries the caller's span, from worker threads and with retries too."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, TraceState, use_span

from headwaiter_client import RetryPolicy
from headwaiter_client.transport.trace_context import with_trace_context
from tests.support.client.both_clients import open_client
from tests.support.client.client_runner import TEXTS
from tests.support.client.fake_server import Call, FakeServer

OWN = (("traceparent", "00-1af92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),)


@pytest.fixture
def span() -> Iterator[Span]:
    """The current span of the test."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("caller") as current:
        yield current


def traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_all_requests_of_a_list_carry_the_span_of_the_caller(call: Call, server: FakeServer, span: Span) -> None:
    call(server, "encode", TEXTS)
    # The call takes one question for the limits and three requests.
    assert server.traceparents == [traceparent(span)] * 4


def test_a_large_tracestate_of_a_stranger_stays_in_the_program() -> None:
    state = TraceState([(f"member{number}", 250 * "x") for number in range(30)])
    context = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    with use_span(NonRecordingSpan(context)):
        assert with_trace_context(()) == (("traceparent", f"00-{1:032x}-{2:016x}-01"),)


async def test_requests_of_a_stream_carry_the_span_of_the_caller(client_class: Any, server: FakeServer) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")

    async def encode() -> str:
        with tracer.start_as_current_span("caller") as span:
            async with open_client(client_class, server.address) as client:
                assert len([one async for one in client.encode_stream(TEXTS)]) == len(TEXTS)
        return traceparent(span)

    assert set(await asyncio.gather(encode(), encode())) == set(server.traceparents)


def test_a_retry_carries_the_same_span(call: Call, server: FakeServer, span: Span) -> None:
    server.refusal = rpc_status.to_status(Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="starting"))
    server.refusals_left = 1
    call(server, "encode", ["a"], connect={"retry": RetryPolicy(max_attempts=3, initial_backoff_s=0.0)})
    assert server.traceparents == [traceparent(span)] * 2


def test_without_a_span_a_call_carries_none(call: Call, server: FakeServer) -> None:
    call(server, "encode", ["a"])
    assert server.traceparents == [""]


def test_a_traceparent_in_the_metadata_of_the_client_is_kept(span: Span) -> None:
    assert with_trace_context(OWN) == OWN


def test_the_client_does_not_import_opentelemetry_itself(span: Span, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert with_trace_context(()) == ()
    assert "opentelemetry.trace" not in sys.modules
