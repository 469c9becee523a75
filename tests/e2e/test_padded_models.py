"""A server of a model that pads sequences answers like the module, and puts together only what may share a batch."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from headwaiter_client import InvalidInput
from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import PADDED_GRAPHS
from headwaiter_proto import encoder_pb2 as pb
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.open_inference_caller import calling, raw_request, refusal
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.export.helpers import assert_close_to_scale
from tests.support.export.own_modules import LABELS, MAX_TOKENS, PADDED, draw_sequences, own_outputs, random_module
from tests.support.tiers import exhaustive

LENGTHS = (9, 2, MAX_TOKENS, 9, 5, 2, MAX_TOKENS - 1, 9, 1, 5, 9, 2)


async def test_a_model_of_logits_alone_scores_tokens(tmp_path: Path) -> None:
    make, takes, _, _ = PADDED["token_logits"]
    module, sequences = random_module(make), draw_sequences(takes, LENGTHS)
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=PADDED_GRAPHS[:1], **takes)
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        scores = await client.classify(sequences, raw_scores=True)
    for given, sequence in zip(scores.token_scores, sequences, strict=True):
        assert_close_to_scale(given, own_outputs(module, sequence), 1e-6)


@pytest.mark.parametrize(
    "name",
    ["masked", "convolution", "scaled_by_batch", *exhaustive("static", "masked_mixer", "positions_from_the_end")],
)
async def test_batches_hold_what_does_not_change_the_results(name: str, tmp_path: Path) -> None:
    module, isolation = exported(name, tmp_path)
    sequences = draw_sequences(PADDED[name][1], LENGTHS)
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        description = await client.model()
        with paused_device() as device:
            encode = client.encode_tokens if description.takes_tokens else client.encode_features
            calls = [asyncio.create_task(encode([each], pooled=True, hidden=True)) for each in sequences]
            await device.wait_for_batch()
            url = metrics_url(server)
            await wait_until(client, lambda: metric_value(url, "headwaiter_queue_sequences") > len(LENGTHS) / 2)
            device.resume()
            encodings = await asyncio.gather(*calls)
    assert (description.execution.graph, description.execution.isolation) == ("padded.fp32.onnx", isolation)
    assert description.execution.padding_reason
    together = [lengths for lengths in device.batch_lengths if len(lengths) > 1]
    for sequence, encoding in zip(sequences, encodings, strict=True):
        expected = own_outputs(module, sequence)
        assert_close_to_scale(encoding.hidden[0], expected, 1e-6)
        assert_close_to_scale(encoding.pooled[0], expected.mean(0), 1e-6)
    if isolation == pb.ISOLATION_MIXED:
        assert any(len(set(lengths)) > 1 for lengths in together)
    elif isolation == pb.ISOLATION_ONE_LENGTH:
        assert together
        assert all(len(set(lengths)) == 1 for lengths in together)
    else:
        assert not together


@pytest.mark.parametrize("name", ["token_logits", *exhaustive("logits")])
async def test_a_model_of_logits_alone_scores_and_refuses_vectors_at_every_door(name: str, tmp_path: Path) -> None:
    module, _ = exported(name, tmp_path)
    sequences = draw_sequences(PADDED[name][1], LENGTHS)
    async with serving(tmp_path / "bundle") as server, connect(server) as client, calling(server) as caller:
        description = await client.model()
        scores = await client.classify(sequences, raw_scores=True)
        for options in ({}, {"pooled": True}, {"hidden": True}, {"pooling": "mean"}):
            with pytest.raises(InvalidInput):
                await client.encode_tokens(sequences, **options)
        ids = np.array([[1, 2, 3]])
        answer = await caller.infer(raw_request("Classifier", input_ids=ids, attention_mask=np.ones_like(ids)))
        assert answer.keys() == {"scores"}
        refused = raw_request("Classifier", ("hidden",), input_ids=ids, attention_mask=np.ones_like(ids))
        await refusal(caller.infer(refused))
    task = "classify_tokens" if name == "token_logits" else "classify"
    assert (set(description.tasks), description.width, description.hidden_width) == ({task}, 0, 0)
    assert scores.labels == LABELS
    expected = [own_outputs(module, each) for each in sequences]
    if name == "logits":
        assert_close_to_scale(scores.scores, np.stack(expected), 1e-6)
    else:
        assert_close_to_scale(np.concatenate(scores.token_scores), np.concatenate(expected), 1e-6)


async def test_a_model_of_vectors_alone_gives_them_and_refuses_rows(tmp_path: Path) -> None:
    module, _ = exported("masked_vectors", tmp_path)
    sequences = draw_sequences(PADDED["masked_vectors"][1], LENGTHS)
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        description = await client.model()
        encoding = await client.encode_tokens(sequences)
        with pytest.raises(InvalidInput, match="a row for each token"):
            await client.encode_tokens(sequences, hidden=True)
        with pytest.raises(InvalidInput, match="MEAN"):
            await client.encode_tokens(sequences, pooling="mean")
    assert (description.pooling, description.poolings) == ("own", ("own",))
    assert_close_to_scale(encoding.pooled, np.stack([own_outputs(module, each) for each in sequences]), 1e-6)


def exported(name: str, folder: Path) -> tuple[torch.nn.Module, pb.Isolation]:
    """Export a module, and return it and the sequences that may share a batch."""
    make, takes, isolation, _ = PADDED[name]
    module = random_module(make)
    export_module(module, folder / "bundle", max_tokens=MAX_TOKENS, plans=PADDED_GRAPHS[:1], **takes)
    return module, isolation
