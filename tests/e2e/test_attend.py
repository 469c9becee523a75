"""Attention weights over gRPC equal those of transformers and of the formulas, and never delay Encode."""

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
import torch
import transformers
from google.protobuf import json_format
from matplotlib.image import imread
from numpy.typing import NDArray

from headwaiter_client import Client, InferenceFailed, InvalidInput, Unavailable, Unimplemented
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights, AttentionWeightsGraph
from testbed.minilm import command_path
from testbed.server_process import RunningServer
from tests.support.checkpoints import VOCABULARY
from tests.support.e2e.grpc_errors import code_of, is_from_server
from tests.support.e2e.in_process_server import connect, metrics_url, serving
from tests.support.e2e.prometheus_metrics import read_metric
from tests.support.export.helpers import assert_close, oracle_of

TEXT = "Rain falls on tables"
TOKENS = ["[CLS]", "rain", "falls", "on", "table", "##s", "[SEP]"]


@pytest.fixture
def client(text_server: RunningServer) -> Iterator[Client]:
    with Client(text_server.address) as connected:
        yield connected


def test_attention_weights_of_a_text_equal_those_of_transformers(client: Client, text_checkpoint: Path) -> None:
    bert = transformers.BertModel.from_pretrained(text_checkpoint, attn_implementation="eager").eval()
    # A token that the vocabulary holds twice has the second id.
    ids = torch.tensor([[{token: i for i, token in enumerate(VOCABULARY)}[token] for token in TOKENS]])
    with torch.inference_mode():
        expected = torch.cat(bert(ids, output_attentions=True).attentions).numpy()
    attention = client.attend(TEXT)
    assert attention.tokens == TOKENS
    assert not hasattr(attention, "context")
    assert_close(attention.weights, expected)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, rtol=0, atol=1e-6)
    of_ids = client.attend(ids[0].numpy(), layers=[1], heads=[3, 0])
    assert not hasattr(of_ids, "tokens")
    assert_close(of_ids.weights, expected[[1]][:, [3, 0]])
    assert of_ids.model == attention.model


@pytest.mark.parametrize("head", [0, 3])
def test_vectors_of_a_head_equal_those_of_transformers(client: Client, text_checkpoint: Path, head: int) -> None:
    bert = transformers.BertModel.from_pretrained(text_checkpoint, attn_implementation="eager").eval()
    own = bert.encoder.layer[1].attention.self
    rows: dict[str, NDArray[Any]] = {}
    for name in ("query", "key", "value"):
        getattr(own, name).register_forward_hook(
            lambda _, __, output, name=name: rows.update({name: output[0].numpy()})
        )
    with torch.inference_mode():
        bert(torch.tensor([[{token: i for i, token in enumerate(VOCABULARY)}[token] for token in TOKENS]]))
    of_head = {name: np.split(each, own.num_attention_heads, axis=1)[head] for name, each in rows.items()}
    attention = client.attend(TEXT, layers=[1], heads=[head], query=4, vectors=True)
    assert_close(attention.vectors.query_vector, of_head["query"][4])
    assert_close(attention.vectors.keys, of_head["key"])
    assert_close(attention.vectors.values, of_head["value"])
    assert_close(attention.context[0, 0], attention.weights[0, 0, 4] @ of_head["value"])


def test_attention_weights_and_context_of_features_equal_the_formula(
    feature_server: RunningServer, feature_encoder: Encoder
) -> None:
    features = np.random.default_rng(5).standard_normal((48, 6), np.float32)
    expected = oracle_of(feature_encoder).attention(features)
    with Client(feature_server.address) as client:
        attention = client.attend(features, query=47)
    assert_close(attention.weights, np.stack([weights for weights, _ in expected]))
    assert_close(attention.context, np.stack([context[:, 47] for _, context in expected]))


async def test_attend_refuses_more_bytes_than_the_limit_in_the_model_description(text_bundle: Path) -> None:
    # The weights of two layers, four heads and ten tokens have 2 · 4 · 10² · 4 = 3,200 bytes.
    async with serving(text_bundle, max_attend_bytes=3200) as server, connect(server) as client:
        model = await client.model()
        assert (model.attends, model.limits.max_attend_bytes) == (True, 3200)
        assert (await client.attend([1] * 10)).weights.nbytes == 3200
        with pytest.raises(InvalidInput) as error:
            await client.attend([1] * 11)
        assert (error.value.field, error.value.limit, error.value.actual) == ("layers", 3200, 3872)
        assert all(number in str(error.value) for number in ("3872", "3200"))
        # One layer alone is within the limit.
        assert (await client.attend([1] * 11, layers=[1])).weights.shape == (1, 4, 11, 11)


async def test_attend_is_unimplemented_for_a_bundle_without_the_graph(text_bundle: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(text_bundle, tmp_path / "old"))
    manifest = json_format.Parse((old / "manifest.json").read_text(), Manifest())
    manifest.ClearField("attend")
    (old / "manifest.json").write_text(json_format.MessageToJson(manifest))
    async with serving(old) as server, connect(server) as client:
        assert not (await client.model()).attends
        with pytest.raises(Unimplemented) as refused:
            await client.attend(TEXT)
        assert code_of(refused.value) is grpc.StatusCode.UNIMPLEMENTED
        assert "tiny-text" in str(refused.value)
        assert (await client.encode([TEXT])).pooled is not None


async def test_encode_is_answered_while_attend_runs_and_a_drain_waits_for_attend(text_bundle: Path) -> None:
    entered, released = threading.Event(), threading.Event()
    run = AttentionWeightsGraph.run

    def run_when_released(
        graph: AttentionWeightsGraph, sequence: NDArray[np.generic], selection: AttentionSelection
    ) -> AttentionWeights:
        entered.set()
        assert released.wait(10)
        return run(graph, sequence, selection)

    async with serving(text_bundle) as server, connect(server) as client:
        with patch.object(AttentionWeightsGraph, "run", run_when_released):
            attending = asyncio.create_task(client.attend(TEXT))
            assert await asyncio.to_thread(entered.wait, 10)
            assert (await client.encode([TEXT])).pooled is not None
            drained = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable) as refused:
                await client.attend(TEXT)
            assert is_from_server(refused.value)
            assert "shutting down" in str(refused.value)
            assert not drained.done()
            released.set()
            assert (await attending).tokens == TOKENS
            await drained


async def test_attend_is_counted_timed_and_logged_like_encode(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, runs = AttentionWeightsGraph.run, count()

    def run_once(graph: AttentionWeightsGraph, *arguments: Any) -> AttentionWeights:
        not_finite = AttentionWeights(np.full((2, 4, 7, 7), np.nan, np.float32), None)
        return not_finite if next(runs) else run(graph, *arguments)

    async with serving(text_bundle) as server, connect(server) as client:
        with patch.object(AttentionWeightsGraph, "run", run_once):
            timings = (await client.attend(TEXT, request_id="attend-1")).timings
            with pytest.raises(InferenceFailed) as failed:
                await client.attend(TEXT, request_id="attend-2")
        for code in ("OK", "INTERNAL"):
            labels = {"model": "tiny-text", "method": "Attend", "code": code}
            assert await read_metric(metrics_url(server), "headwaiter_requests_total", **labels) == 1
    stages_s = timings.tokenize_s + timings.queue_s + timings.assemble_s + timings.compute_s + timings.respond_s
    assert stages_s == pytest.approx(timings.total_s, rel=0, abs=1e-6)
    assert (failed.value.sequence, failed.value.request_id) == (0, "attend-2")
    (logged,) = (
        record.getMessage() for record in caplog.records if record.name.startswith("headwaiter_server.requests")
    )
    assert all(part in logged for part in ("Attend", "attend-2", "InferenceFailed", str(failed.value)))


def test_the_attend_command_prints_bars_and_draws_a_heat_map(
    text_server: RunningServer, client: Client, tmp_path: Path
) -> None:
    flags = ["--layer", "1", "--head", "2", "--query", "s", "--png", "map.png", "--address", text_server.address]
    ended = subprocess.run(
        [command_path("headwaiter-client"), "attend", TEXT, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    title, *lines = ended.stdout.splitlines()
    assert all(part in title for part in ("layer 1", "head 2", "##s", "position 5"))
    row = client.attend(TEXT, layers=[1], heads=[2]).weights[0, 0, 5]
    assert [line.split()[:2] for line in lines] == [
        [token, f"{weight:.4f}"] for token, weight in zip(TOKENS, row, strict=True)
    ]
    assert max(lines, key=lambda line: line.count("█")).split()[0] == TOKENS[int(row.argmax())]
    assert min(imread(tmp_path / "map.png").shape[:2]) >= 400
