"""Every form of self-attention, in every lowering, against the formulas in float64.

The graphs run over batches they were not traced with.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from headwaiter_export.bundle import export_bundle
from headwaiter_export.config import EncoderConfig, Positions
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import WeightsFile, trace
from headwaiter_export.lowering import Packed, PackedCpu, PackedCuda, Portable, SingleSequence
from headwaiter_export.positions import RotaryPositions
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.packing import pack
from tests import oracle
from tests.export.helpers import BATCHES, assert_close, assert_close_to_scale, draw, oracle_of, random_encoder, run
from tests.oracle import Array, unit

Paths = dict[type[Packed | Portable], Path]

# Where a lowering runs in these tests; CUDA's operators are onnx's reference and our own numpy.
RUNTIMES: dict[type[Packed | Portable], str] = {PackedCpu: "cpu", Portable: "cpu", PackedCuda: "reference"}
FORMS: dict[str, dict[str, Any]] = {
    "wide heads, some biases, pre-norm and a final norm": {
        "layers": 2,
        "head_dim": 12,
        "query_bias": False,
        "value_bias": False,
        "norm": "pre",
        "final_norm": True,
    },
    "narrow heads, no biases, no norm, sinusoidal positions": {
        "head_dim": 5,
        "query_bias": False,
        "key_bias": False,
        "value_bias": False,
        "output_bias": False,
        "norm": "none",
        "positions": "sinusoidal",
    },
    "self-excluding, heads concatenated, post-norm, attention alone": {
        "layers": 2,
        "mask": "self_excluding",
        "output_projection": False,
        "key_bias": False,
        "d_ff": 0,
    },
    "heads concatenated to another width, post-norm, no residual": {
        "output_projection": False,
        "head_dim": 5,
        "residual": False,
    },
    "causal, rotary positions, wide values, learned temperatures": {
        "mask": "causal",
        "positions": "rotary",
        "head_dim": 6,
        "value_dim": 10,
        "learned_temperature": True,
    },
    "rotary positions, narrow values, learned temperatures, and nothing but attention over the features": {
        "positions": "rotary",
        "value_dim": 5,
        "learned_temperature": True,
        "feature_width": 24,
        "feature_projection": False,
        "query_bias": False,
        "output_projection": False,
        "residual": False,
        "norm": "none",
        "d_ff": 0,
    },
}


def write_graphs(encoder: Encoder, folder: Path, *lowerings: type[Packed | Portable]) -> Paths:
    """Write the encoder in these lowerings."""
    paths = {lowering: folder / f"{lowering.__name__}.onnx" for lowering in lowerings}
    with WeightsFile(folder / "weights.bin") as weights:
        for lowering, path in paths.items():
            weights.write_graph(trace(encoder.folded(), lowering, pack(draw(encoder.config, (3, 2)))), path)
    return paths


def hidden_of(path: Path, lowering: type[Packed | Portable], sequences: list[Array]) -> Array:
    """Run one batch through a graph."""
    hidden = run(path, RUNTIMES[lowering], sequences).hidden
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("choices", FORMS.values(), ids=FORMS)
def test_a_form_is_its_formula_in_every_lowering(choices: dict[str, Any], tmp_path: Path) -> None:
    encoder = random_encoder(**{"feature_width": 6, "layers": 1, "embedding_norm": False, "norm_eps": 1e-5, **choices})
    formula = oracle_of(encoder)
    paths = write_graphs(encoder, tmp_path, *RUNTIMES)
    for lengths in BATCHES:
        sequences = draw(encoder.config, [max(n, encoder.config.min_tokens) for n in lengths])
        expected = [formula.hidden(sequence) for sequence in sequences]
        for lowering, runtime in RUNTIMES.items():
            outputs = run(paths[lowering], runtime, sequences)
            assert_close_to_scale(outputs.hidden, np.concatenate(expected))
            assert_close_to_scale(outputs.pooled, np.stack([rows.mean(0) for rows in expected]))
        for sequence, rows in zip(sequences, expected, strict=True):
            with torch.inference_mode():
                _, hidden = encoder(torch.from_numpy(sequence), SingleSequence(len(sequence)))
            assert_close_to_scale(hidden.numpy(), rows)


@pytest.mark.parametrize("lowering", RUNTIMES)
def test_in_a_causal_graph_no_token_changes_an_output_before_it(
    lowering: type[Packed | Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(feature_width=6, layers=2, mask="causal", positions="none", pooling="none")
    path = write_graphs(encoder, tmp_path, lowering)[lowering]
    sequences = draw(encoder.config, (9, 12))
    before = hidden_of(path, lowering, sequences)
    for changed in range(9):
        sequences[0] = draw(encoder.config, (9,))[0]
        sequences[0][changed] = 1e4
        after = hidden_of(path, lowering, sequences)
        assert after[:changed].tobytes() == before[:changed].tobytes()
        assert (after[changed:9] != before[changed:9]).any(axis=1).all()


@pytest.mark.parametrize("lowering", RUNTIMES)
def test_in_a_self_excluding_graph_a_tokens_weight_on_itself_is_zero(
    lowering: type[Packed | Portable], tmp_path: Path
) -> None:
    bare: dict[str, Any] = {"layers": 1, "d_ff": 0, "residual": False, "norm": "none", "positions": "none"}
    encoder = random_encoder(feature_width=6, mask="self_excluding", pooling="none", **bare)
    # Queries of zero look at all others alike; a token's own value has then no other way to its output.
    for parameter in encoder.get_submodule("layers.0.attention.query").parameters():
        parameter.data.zero_()
    path = write_graphs(encoder, tmp_path, lowering)[lowering]
    sequences = draw(encoder.config, (9, 2))
    before = hidden_of(path, lowering, sequences)
    sequences[0][4] = 1e4
    after = hidden_of(path, lowering, sequences)
    assert [row for row in range(11) if after[row].tobytes() == before[row].tobytes()] == [4, 9, 10]


def test_a_model_that_needs_two_tokens_says_so_and_is_checked_from_there_on(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, mask="self_excluding", positions="none")
    export_bundle(encoder, None, tmp_path / "bundle", "tiny")
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.min_tokens == 2
    assert sorted({len(sequence) for sequence in bundle.golden().sequences})[:3] == [2, 3, 4]


def test_a_masked_graph_in_half_precision_has_the_direction_of_its_formula(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, mask="causal", pooling="none")
    expected = np.concatenate([oracle_of(encoder).hidden(each) for each in draw(encoder.config, (5, 48, 1))])
    path = write_graphs(encoder.half(), tmp_path, PackedCuda)[PackedCuda]
    actual = hidden_of(path, PackedCuda, draw(encoder.config, (5, 48, 1)))
    assert actual.dtype == np.float16
    assert (unit(actual.astype(np.float64)) * unit(expected)).sum(-1).min() >= 0.9999


def test_with_rotary_positions_scores_depend_only_on_how_far_tokens_are_apart() -> None:
    config = EncoderConfig(
        feature_width=6, d_model=24, heads=3, layers=1, d_ff=0, max_tokens=48, positions=Positions.ROTARY
    )
    torch.manual_seed(0)
    query, key = torch.randn(2, config.d_model)
    lowering = SingleSequence(config.max_tokens)
    rotated = [
        RotaryPositions(config)(row.expand(config.max_tokens, -1).contiguous(), lowering) for row in (query, key)
    ]
    by_head = [rows.view(config.max_tokens, config.heads, -1).transpose(0, 1) for rows in rotated]
    scores = (by_head[0] @ by_head[1].transpose(1, 2)).numpy()
    for offset in range(-47, 48):
        diagonals = np.diagonal(scores, offset, 1, 2)
        assert_close(diagonals, np.broadcast_to(diagonals[:, :1], diagonals.shape))
    assert np.ptp(scores, axis=2).min() > 0.1


def test_learned_temperatures_cost_a_graph_nothing(tmp_path: Path) -> None:
    operators = []
    for learned in (True, False):
        folder = tmp_path / str(learned)
        folder.mkdir()
        encoder = random_encoder(feature_width=6, layers=1, learned_temperature=learned)
        graph = onnx.load(write_graphs(encoder, folder, PackedCpu)[PackedCpu], load_external_data=False).graph
        operators.append([node.op_type for node in graph.node])
    assert operators[0] == operators[1]


def test_the_formulas_are_written_in_nothing_but_numpy() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}
