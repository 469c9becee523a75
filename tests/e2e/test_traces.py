"""What a real OTLP receiver gets: parents, stages whose times add up, batches with links, errors, sampling."""

import asyncio
import json
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from headwaiter_client import AsyncClient, Client, InferenceFailed, SequenceTooLong, Timings
from headwaiter_server.app import Server
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.tracing.spans import _SENDING_LOGGERS, Tracing, _OneLineAMinute
from testbed.server_process import free_port, running_server
from tests.e2e.test_stream import request, streaming
from tests.support.e2e.http_calls import http_status
from tests.support.e2e.in_process_server import (
    _FrontEndInLoop,
    connect,
    metrics_url,
    paused_device,
    serving,
    wait_until,
)
from tests.support.e2e.otlp_receiver import ReceivedSpan, Receiver, receiving_over_grpc, receiving_over_http
from tests.support.e2e.prometheus_metrics import metric_value

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
STAGES = ("tokenize", "queue", "assemble", "compute", "respond")
ENCODE, EMBEDDINGS = "headwaiter.v1.Encoder/Encode", "POST /v1/embeddings"
# A batch with a sequence of this id fails.
POISON = 7
RUN = EncoderGraph.run
# The server leaves out shorter waits between two stages.
SHORTEST_WAIT_S = 5e-5
both_forms = pytest.mark.parametrize("front_ends", [0, 1])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver to which servers send the spans of requests whose caller is sampled."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with receiving_over_grpc() as (receiver, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        yield receiver


def post(server: Server, body: object, traceparent: str = SAMPLED) -> int:
    """Send a request over HTTP, and return the status of the answer."""
    url, headers = metrics_url(server).replace("/metrics", "/v1/embeddings"), {"Traceparent": traceparent}
    return http_status(urllib.request.Request(url, json.dumps(body).encode(), headers))


def openmetrics_page(server: Server) -> str:
    asked = urllib.request.Request(metrics_url(server), headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asked, timeout=10) as reply:
        page: str = reply.read().decode()
    return page


def check_stages(span: ReceivedSpan, stages: list[ReceivedSpan], timings: Timings | None) -> None:
    """Check that the stages cover a request and nothing else, and take the times that its reply and its span say."""
    assert {stage.name for stage in stages} == set(STAGES)
    reached_s = span.start_s
    for stage in stages:
        # Unix times have a resolution of 0.2 µs as floats.
        assert span.start_s - 1e-6 <= stage.start_s <= reached_s + SHORTEST_WAIT_S + 1e-6
        reached_s = max(reached_s, stage.end_s)
    assert reached_s == pytest.approx(span.end_s, rel=0, abs=1e-6)
    durations_s = {name: span.attributes[f"headwaiter.{name}_s"] for name in STAGES}
    for name in STAGES[:-1]:
        spans_s = sum(stage.end_s - stage.start_s for stage in stages if stage.name == name)
        assert spans_s == pytest.approx(durations_s[name], rel=0, abs=4 * SHORTEST_WAIT_S)
    # The last stage also covers the serialisation of the reply, which the timings in the reply cannot.
    total_s = sum(durations_s.values())
    assert total_s - 1e-6 <= span.end_s - span.start_s <= total_s + 0.5
    if timings is not None:
        assert durations_s == {name: getattr(timings, f"{name}_s") for name in STAGES}
        assert total_s == pytest.approx(timings.total_s, rel=0, abs=1e-6)


@both_forms
async def test_a_request_over_grpc_and_one_over_http_have_their_stages_and_share_the_span_of_their_batch(
    front_ends: int, text_bundle: Path, receiver: Receiver
) -> None:
    caller = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False).get_tracer("test")
    async with (
        serving(text_bundle, traces="otlp", http_api="on", front_ends=front_ends) as server,
        connect(server) as client,
    ):
        with paused_device() as device:
            # One batch is held on the device, and one waits behind it. What comes then shares the next batch.
            others = [asyncio.create_task(client.encode_tokens([[1] * 3]))]
            await device.wait_for_batch()
            others.append(asyncio.create_task(client.encode_tokens([[1] * 3])))
            queued = partial(metric_value, metrics_url(server), "headwaiter_queue_sequences")
            await wait_until(client, lambda: queued() == 1)
            with caller.start_as_current_span("caller") as span:
                by_grpc = asyncio.create_task(client.encode(["bread", "rain"], request_id="order-17"))
            by_http = asyncio.create_task(asyncio.to_thread(post, server, {"input": "rain"}))
            await wait_until(client, lambda: queued() == 1 + 3)
            device.resume()
            await asyncio.gather(*others)
            timings = (await by_grpc).timings
            assert await by_http == 200
        page = await asyncio.to_thread(openmetrics_page, server)
    (grpc_span,), (http_span,), (batch,) = (receiver.named(name) for name in (ENCODE, EMBEDDINGS, "batch"))
    context = span.get_span_context()
    assert (grpc_span.ids[0], grpc_span.parent) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert (http_span.ids[0], http_span.parent) == (TRACE, PARENT)
    for each, own in (
        (grpc_span, {"rpc.system.name": "grpc", "rpc.method": ENCODE, "rpc.response.status_code": "OK"}),
        (http_span, {"http.request.method": "POST", "http.route": "/v1/embeddings", "http.response.status_code": 200}),
    ):
        sequences = 2 if each is grpc_span else 1
        model = {"gen_ai.request.model": "tiny-text", "gen_ai.response.model": "tiny-text"}
        sizes = {"headwaiter.sequences": sequences, "headwaiter.model.version": "1"}
        common = {"gen_ai.operation.name": "embeddings", "gen_ai.provider.name": "headwaiter", **model, **sizes}
        assert each.attributes.items() >= {**common, **own}.items()
        assert each.attributes["gen_ai.usage.input_tokens"] == 3 * sequences  # a word and two special tokens
        assert (each.kind, each.failed, "error.type" in each.attributes) == (Span.SPAN_KIND_SERVER, False, False)
        assert each.resource["service.name"] == "headwaiter"
        assert each.resource["headwaiter.process"] == ("front end 1" if front_ends else "engine")
        check_stages(each, stages := receiver.children(each), timings if each is grpc_span else None)
        # The request waited for the held device, and ran in the batch that it links to.
        assert max(stages, key=lambda stage: stage.end_s - stage.start_s).name == "queue"
        (compute,) = [stage for stage in stages if stage.name == "compute"]
        assert compute.links == [batch.ids]
        assert batch.start_s - 0.01 <= compute.start_s <= compute.end_s == pytest.approx(batch.end_s, rel=0, abs=0.01)
        assert compute.end_s - compute.start_s == pytest.approx(
            batch.attributes["headwaiter.batch.measured_s"], rel=0, abs=1e-6
        )
        assert f'span_id="{each.ids[1]}",trace_id="{each.ids[0]}"' in page
    assert grpc_span.attributes["headwaiter.request.id"] == "order-17"
    assert (batch.parent, batch.resource["headwaiter.process"]) == ("", "engine")
    assert sorted(batch.links) == sorted([grpc_span.ids, http_span.ids])
    sizes = {"requests": 2, "sequences": 3, "tokens": 9}
    assert batch.attributes.items() >= {f"headwaiter.batch.{name}": value for name, value in sizes.items()}.items()
    assert receiver.children(batch) == []
    assert batch.attributes["headwaiter.batch.predicted_s"] > 0
    # The other requests, whose caller has no span, and their batches send nothing.
    assert {span.name for span in receiver.spans} == {ENCODE, EMBEDDINGS, "batch", *STAGES}
    assert len([span for span in receiver.spans if span.name not in STAGES]) == 3


def run_without_poison(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
    if POISON in batch.rows:
        raise RuntimeError("the model failed")
    return RUN(graph, batch, hidden=hidden)


@both_forms
async def test_failures_of_the_server_are_errors_and_mistakes_of_callers_are_none(
    front_ends: int, text_bundle: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with receiving_over_http() as (over_http, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        async with (
            serving(text_bundle, traces="otlp", http_api="on", front_ends=front_ends) as server,
            AsyncClient(f"127.0.0.1:{server.port}", metadata={"traceparent": SAMPLED}) as client,
        ):
            with patch.object(EncoderGraph, "run", run_without_poison):
                with pytest.raises(SequenceTooLong):
                    await client.encode_tokens([[1] * 65])
                with pytest.raises(InferenceFailed):
                    await client.encode_tokens([[POISON]])
                assert await asyncio.to_thread(post, server, {"input": []}) == 400
                assert await asyncio.to_thread(post, server, {"input": [POISON]}) == 500
    assert receiver.spans == []
    spans = over_http.named(ENCODE) + over_http.named(EMBEDDINGS)
    statuses = [
        each.attributes.get("rpc.response.status_code") or each.attributes["http.response.status_code"]
        for each in spans
    ]
    assert statuses == ["INVALID_ARGUMENT", "INTERNAL", 400, 500]
    reasons = ["SEQUENCE_TOO_LONG", "INFERENCE_FAILED", "INVALID_INPUT", "INFERENCE_FAILED"]
    assert [each.attributes["headwaiter.error.reason"] for each in spans] == reasons
    assert [each.attributes.get("error.type") for each in spans] == [None, "INTERNAL", None, "500"]
    assert [each.failed for each in spans] == [False, True, False, True]
    assert {(each.ids[0], each.parent) for each in spans} == {(TRACE, PARENT)}
    failed = over_http.named("batch")
    assert [(each.links, each.failed, each.attributes["error.type"]) for each in failed] == [
        ([spans[1].ids], True, "RuntimeError"),
        ([spans[3].ids], True, "RuntimeError"),
    ]


@both_forms
async def test_each_request_of_a_stream_is_a_span_of_the_caller_of_the_stream(
    front_ends: int, text_bundle: Path, receiver: Receiver
) -> None:
    async with streaming(text_bundle, traces="otlp", front_ends=front_ends) as (_, _, open_stream):
        sent = [request("one", 3), request("two", 5)]
        answers = [answer async for answer in open_stream(sent, metadata=(("traceparent", SAMPLED),))]
    assert len(answers) == 2
    spans = receiver.named("headwaiter.v1.Encoder/EncodeStream")
    assert {span.attributes["headwaiter.request.id"] for span in spans} == {"one", "two"}
    assert {(span.ids[0], span.parent) for span in spans} == {(TRACE, PARENT)}
    for span in spans:
        check_stages(span, receiver.children(span), None)
    assert sorted(link for batch in receiver.named("batch") for link in batch.links) == sorted(
        span.ids for span in spans
    )


async def test_the_callers_flag_decides_before_the_servers_own_sampler(
    text_bundle: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "search-encoder")
    async with serving(text_bundle, traces="otlp") as server:
        for traceparent in (NOT_SAMPLED, "nonsense"):
            async with AsyncClient(f"127.0.0.1:{server.port}", metadata={"traceparent": traceparent}) as client:
                await client.encode(["bread"])
    # By default, a request without a caller's span is sampled.
    (span,) = receiver.named(ENCODE)
    assert (span.parent, span.resource["service.name"]) == ("", "search-encoder")
    assert span.ids[0] != TRACE
    assert len(receiver.named("batch")) == 1


@pytest.fixture
def trace_log(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The lines of the log about sending spans; spans are sent every 10 ms, in small batches."""
    lines: list[logging.LogRecord] = []
    # An earlier test of this process may have logged such a line in the last minute.
    for name in _SENDING_LOGGERS:
        for each in logging.getLogger(name).handlers:
            if isinstance(each, _OneLineAMinute):
                each._next_s.clear()
    handler = logging.Handler()
    handler.addFilter(lambda line: not line.name.startswith(("headwaiter", "asyncio")))
    monkeypatch.setattr(handler, "emit", lines.append)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    for name, value in (("MAX_QUEUE_SIZE", "16"), ("MAX_EXPORT_BATCH_SIZE", "16"), ("SCHEDULE_DELAY", "10")):
        monkeypatch.setenv(f"OTEL_BSP_{name}", value)
    return lines


async def test_without_a_receiver_requests_are_answered_and_the_log_and_the_drain_stay_short(
    text_bundle: Path, trace_log: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    async with serving(text_bundle, traces="otlp") as server, connect(server) as client:
        for _ in range(20):
            await client.encode(["bread"], timeout_s=5)
        drained_s = time.monotonic()
    assert time.monotonic() - drained_s < 5
    places = [(line.pathname, line.lineno) for line in trace_log]
    assert 1 <= len(places) == len(set(places)) <= 3


@pytest.mark.parametrize(
    ("protocol", "receiving", "logger"),
    [("grpc", receiving_over_grpc, "grpc._common"), ("http/protobuf", receiving_over_http, "urllib3.connection")],
)
async def test_replies_of_a_receiver_that_cannot_be_read_are_logged_once_a_minute(
    protocol: str,
    receiving: Callable[..., AbstractContextManager[tuple[Receiver, str]]],
    logger: str,
    text_bundle: Path,
    trace_log: list[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with receiving(garbled=True) as (receiver, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        async with serving(text_bundle, traces="otlp") as server, connect(server) as client:
            while receiver.exports < 3:
                await client.encode(["bread"], timeout_s=5)
    assert [line.name for line in trace_log].count(logger) == 1
    places = [(line.pathname, line.lineno) for line in trace_log]
    assert len(places) == len(set(places))


async def test_a_front_end_is_not_killed_while_it_sends_its_last_spans(
    text_bundle: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, kill = Tracing.send_last_spans, _FrontEndInLoop.kill
    had_ended: list[bool] = []

    async def send_slowly(tracing: Tracing) -> None:
        await asyncio.sleep(0.3)
        await send(tracing)

    def watched_kill(front_end: _FrontEndInLoop) -> None:
        had_ended.append(front_end._task.done())
        kill(front_end)

    monkeypatch.setattr(front_end_supervisor, "_END_S", 0.2)
    monkeypatch.setattr(Tracing, "send_last_spans", send_slowly)
    monkeypatch.setattr(_FrontEndInLoop, "kill", watched_kill)
    async with (
        serving(text_bundle, traces="otlp", front_ends=1) as server,
        AsyncClient(f"127.0.0.1:{server.port}", metadata={"traceparent": SAMPLED}) as client,
    ):
        await client.encode(["bread"])
    assert had_ended == [True]
    assert len(receiver.named(ENCODE)) == 1


def test_processes_of_their_own_send_their_last_spans_when_the_server_stops(
    text_bundle: Path, receiver: Receiver
) -> None:
    flags = ["--provider", "cpu", "--traces", "otlp", "--front-ends", "1"]
    with running_server(text_bundle, flags) as server:
        with Client(server.address, metadata={"traceparent": SAMPLED}) as client:
            client.encode(["bread"])
        process = server.process
    assert process.returncode == 0
    (span,), (batch,) = receiver.named(ENCODE), receiver.named("batch")
    assert batch.links == [span.ids]
    assert {stage.name for stage in receiver.children(span)} == set(STAGES)
    ids = [each.resource["service.instance.id"] for each in (span, batch)]
    assert ids[1].endswith(f":{process.pid}")
    assert re.fullmatch(r".+:\d+", ids[0])
    assert ids[0] != ids[1]
