"""What operators can observe: reflection, metrics, timings, request ids and the log."""

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headwaiter_client import Client, InferenceFailed, InvalidInput, ModelNotFound
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from testbed.server_process import RunningServer
from tests.support.e2e.in_process_server import connect, serving
from tests.support.e2e.prometheus_metrics import metric_value, metrics_page

MODEL = 'model="tiny-text",version="1"'
STAGES = ("tokenize", "queue", "assemble", "compute", "respond")


@pytest.fixture
def client(text_server: RunningServer) -> Iterator[Client]:
    with Client(text_server.address) as connected:
        yield connected


@pytest.fixture
def page(text_server: RunningServer, client: Client) -> str:
    """The metrics page after one answered and one refused request."""
    client.encode(["bread"])
    with pytest.raises(InvalidInput):
        client.encode(["bread"], prompt="another")
    return metrics_page(text_server.metrics_url)


def test_reflection_lists_the_services_and_the_methods_of_the_encoder(text_server: RunningServer) -> None:
    with grpc.insecure_channel(text_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        encoder = DescriptorPool(database).FindServiceByName("headwaiter.v1.Encoder")
        assert set(database.get_services()) == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "headwaiter.v1.Encoder",
            "inference.GRPCInferenceService",
        }
    assert list(encoder.methods_by_name) == [
        "Encode",
        "EncodeStream",
        "Classify",
        "Tokenize",
        "Attend",
        "ListModels",
        "GetModel",
        "LoadModel",
        "UnloadModel",
        "ListBatches",
    ]


@pytest.mark.parametrize(
    "sample",
    [
        f'headwaiter_requests_total{{code="OK",method="Encode",{MODEL}}}',
        f'headwaiter_requests_total{{code="INVALID_ARGUMENT",method="Encode",{MODEL}}}',
        f'headwaiter_request_duration_seconds_count{{method="Encode",{MODEL}}}',
        *(
            f'headwaiter_stage_duration_seconds_count{{model="tiny-text",stage="{stage}",version="1"}}'
            for stage in STAGES
        ),
        f"headwaiter_batch_sequences_count{{{MODEL}}}",
        f"headwaiter_batch_tokens_count{{{MODEL}}}",
        f"headwaiter_batch_padding_ratio_count{{{MODEL}}}",
        f"headwaiter_queue_sequences{{{MODEL}}}",
        f"headwaiter_queue_tokens{{{MODEL}}}",
        f"headwaiter_estimated_wait_seconds{{{MODEL}}}",
        'headwaiter_refused_total{reason="INVALID_INPUT"}',
        f"headwaiter_expired_total{{{MODEL}}}",
        "headwaiter_inflight_requests",
    ],
)
def test_the_metrics_page_has_the_sample(page: str, sample: str) -> None:
    assert [line for line in page.splitlines() if line.startswith(f"{sample} ")]


def test_metrics_name_the_served_model(text_server: RunningServer, client: Client) -> None:
    digest = client.encode(["bread"]).model.digest
    info = {"model": "tiny-text", "digest": digest, "provider": "cpu", "graph": "packed-cpu.fp32.onnx"}
    assert metric_value(text_server.metrics_url, "headwaiter_model_info", **info) == 1


def test_the_server_lists_its_latest_batches(client: Client) -> None:
    client.encode(["bread", "rain falls", "stone"])
    *_, batch = client.batches()
    assert (batch.model, batch.version, len(batch.lengths)) == ("tiny-text", "1", 3)
    assert len(set(batch.requests)) == 1
    assert 0 <= batch.ended_s_ago < 60
    assert min(batch.predicted_s, batch.measured_s) > 0
    with pytest.raises(ModelNotFound):
        client.batches("absent")


def test_promtool_accepts_the_metrics(page: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: install Prometheus")
    checked = subprocess.run(["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_the_request_id_is_in_the_reply_and_in_the_single_log_line_of_a_failure(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    async with serving(text_bundle) as server, connect(server) as client:
        assert (await client.encode(["bread"], request_id="order-1")).request_id == "order-1"
        assert (await client.encode(["bread"])).request_id
        with pytest.raises(InvalidInput) as refused:
            await client.encode(["bread"], prompt="another", request_id="order-2")
    assert refused.value.request_id == "order-2"
    (line,) = failure_lines(caplog)
    assert all(part in line for part in ("Encode", "order-2", "InvalidInput", str(refused.value)))


async def test_a_failed_inference_hides_the_cause_from_the_client_and_logs_it_once(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = EncoderGraph.run

    def fail_on_30_tokens(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if batch.tokens == 30:
            raise RuntimeError("out of memory\nat graph.cc:17")
        return run(graph, batch, hidden=hidden)

    async with serving(text_bundle) as server, connect(server) as client:
        with patch.object(EncoderGraph, "run", fail_on_30_tokens), pytest.raises(InferenceFailed) as failed:
            await client.encode_tokens([[1] * 30], request_id="order-3")
        assert (await client.encode(["bread"])).pooled is not None
    assert failed.value.sequence == 0
    assert "0" in str(failed.value)
    assert "out of memory" not in str(failed.value)
    (line,) = failure_lines(caplog)
    facts = ("Encode", "order-3", "InferenceFailed", str(failed.value), "out of memory at graph.cc:17")
    assert all(fact in line for fact in facts)


def failure_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about failed requests: warnings and errors, and also callers' mistakes, which are INFO."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING or record.name.endswith("requests.call")
    ]
