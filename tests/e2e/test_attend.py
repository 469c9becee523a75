"""Attention weights over gRPC equal those of transformers and of the formulas, and never delay Encode."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
import torch
import transformers
from google.protobuf import json_format
from numpy.typing import NDArray

from headwaiter_client import Client, Unavailable, Unimplemented
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights, AttentionWeightsGraph
from testbed.server_process import RunningServer
from tests.support.checkpoints import VOCABULARY
from tests.support.e2e.grpc_errors import code_of, is_from_server
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.helpers import assert_close

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
