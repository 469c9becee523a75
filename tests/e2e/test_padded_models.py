"""A server of a model that pads sequences answers like the module, and puts together only what may share a batch."""

import asyncio
from pathlib import Path

import pytest

from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import PADDED_GRAPHS
from headwaiter_proto import encoder_pb2 as pb
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.export.helpers import assert_close_to_scale
from tests.support.export.own_modules import MAX_TOKENS, PADDED, draw_sequences, own_outputs, random_module
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
    make, takes, isolation, _ = PADDED[name]
    module, sequences = random_module(make), draw_sequences(takes, LENGTHS)
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=PADDED_GRAPHS[:1], **takes)
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
