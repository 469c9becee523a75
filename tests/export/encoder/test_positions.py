"""Without positions the order of rows does not matter; with rotary positions only distances matter."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.positions import RotaryPositions
from headwaiter_server.runtime.graph import open_session, session_options
from headwaiter_server.runtime.packing import pack
from tests.support.export.helpers import FP32_GRAPHS, Runtime, assert_close, random_sequences, run_hidden


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_without_positions_permuted_rows_have_permuted_results(
    file: str, runtime: Runtime, feature_bundle: Path, feature_encoder: Encoder
) -> None:
    sequences = random_sequences(feature_encoder.config, (20, 48))
    orders = [np.random.default_rng(0).permutation(len(sequence)) for sequence in sequences]
    shuffled = [sequence[order] for sequence, order in zip(sequences, orders, strict=True)]
    before = run_hidden(feature_bundle / file, runtime, sequences)
    after = run_hidden(feature_bundle / file, runtime, shuffled)
    for old, new, order in zip(before, after, orders, strict=True):
        np.testing.assert_allclose(new, old[order], rtol=0, atol=1e-6 * np.abs(old).max())


def test_with_rotary_positions_scores_depend_only_on_the_distance() -> None:
    config = EncoderConfig(
        feature_width=6, d_model=24, heads=3, layers=1, d_ff=0, max_tokens=48, positions=Positions.ROTARY
    )
    torch.manual_seed(0)
    query, key = torch.randn(2, config.d_model)
    layout = SingleSequence(config.max_tokens)
    rotated = [
        RotaryPositions(config, config.rotary_theta)(row.expand(config.max_tokens, -1).contiguous(), layout)
        for row in (query, key)
    ]
    by_head = [rows.view(config.max_tokens, config.heads, -1).transpose(0, 1) for rows in rotated]
    scores = (by_head[0] @ by_head[1].transpose(1, 2)).numpy()
    for offset in range(-47, 48):
        diagonals = np.diagonal(scores, offset, 1, 2)
        assert_close(diagonals, np.broadcast_to(diagonals[:, :1], diagonals.shape))
    assert np.ptp(scores, axis=2).min() > 0.1


def test_a_graph_with_rotary_positions_gives_the_same_result_at_shifted_positions(
    causal_bundle: Path, causal_encoder: Encoder
) -> None:
    session = open_session(causal_bundle / "packed-cpu.fp32.onnx", "cpu", session_options(threads=1))
    batch = pack(random_sequences(causal_encoder.config, (9, 12)))
    feeds = batch.feeds([each.name for each in session.get_inputs()])
    positions = batch.feeds(["positions"])["positions"]
    original, shifted, stretched = (
        session.run(["hidden"], {**feeds, "positions": changed})[0]
        for changed in (positions, positions + 36, positions * 2)
    )
    assert_close(shifted, original)
    assert np.abs(stretched - original).max() > 0.1
