"""A server answers with the rows that PyTorch's decoder gives for a target, given its encoder's rows of the source."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from headwaiter_client import InvalidInput, source_and_target
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.from_torch import from_transformer_decoder
from tests.support.checkpoints import randomize
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.helpers import assert_close_to_scale
from tests.support.oracle import Array

pytestmark = pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers", "packed_cpu_alone")

WIDTH, MOST = 16, 40


def draw(rng: np.random.Generator, rows: int) -> Array:
    return rng.standard_normal((rows, WIDTH), np.float32)


async def test_a_served_decoder_equals_pytorch_and_a_bad_sequence_harms_no_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = nn.Transformer(WIDTH, 4, 1, 2, 24, batch_first=True).eval()
    randomize(whole)
    encoder = from_transformer_decoder(whole.decoder, whole.encoder, max_tokens=2 * MOST, target_mask=Mask.CAUSAL)
    export_bundle(encoder, None, tmp_path / "bundle", "translator", report=lambda line: None)
    rng = np.random.default_rng(0)
    pairs = [(draw(rng, n), draw(rng, m)) for n, m in rng.integers(1, MOST + 1, (20, 2)).tolist()]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        model = await client.model()
        sequences = [source_and_target(*pair, model) for pair in pairs]
        backwards = sequences[7][::-1].copy()
        encoding = await client.encode_features([*sequences, backwards], partial=True)
        with pytest.raises(InvalidInput, match="pooling"):
            await client.encode_features(sequences, pooling="mean")
    assert (model.feature_width, model.min_tokens, model.poolings, model.layers) == (WIDTH + 1, 2, (), 5)
    assert [*encoding.failures] == [len(pairs)]
    assert encoding.hidden is not None
    for hidden, (source, target) in zip(encoding.hidden, pairs, strict=False):
        mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        with torch.inference_mode():
            expected = whole(torch.from_numpy(source)[None], torch.from_numpy(target)[None], tgt_mask=mask)
        assert_close_to_scale(hidden, expected[0].numpy())
