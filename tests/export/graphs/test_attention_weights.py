"""The graph of attention weights equals the formulas, and does not change the other graphs of a bundle."""

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import ATTENTION_WEIGHTS_GRAPH, GRAPHS
from headwaiter_export.bundle.verification import AttentionReference, check_attention_weights
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_proto.manifest_pb2 import LOWERING_ATTEND
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.bundle import Bundle
from tests.support.export.family_checkpoints import save_family
from tests.support.export.helpers import (
    assert_close,
    assert_close_to_scale,
    oracle_of,
    random_encoder,
    random_sequences,
)
from tests.support.tiers import exhaustive

ENCODERS: dict[str, dict[str, Any]] = {
    "as in BERT": {"vocabulary_size": 50},
    "biases by distance": {
        "vocabulary_size": 50,
        "distance_bias": True,
        "distance_keys": True,
        "distance_queries": True,
    },
    "causal, pre-norm, without biases": {
        "feature_width": 6,
        "mask": "causal",
        "norm": "pre",
        "query_bias": False,
        "key_bias": False,
    },
    "self-excluding, heads concatenated, attention alone": {
        "feature_width": 6,
        "mask": "self_excluding",
        "output_projection": False,
        "d_ff": 0,
        "positions": "sinusoidal",
    },
    "a decoder, whose layers also attend to the encoder": {
        "vocabulary_size": 50,
        "decoder": DecoderConfig(layers=2, d_ff=30, start_id=4),
    },
    "rotary positions, learned temperatures, wide values": {
        "feature_width": 6,
        "positions": "rotary",
        "head_dim": 6,
        "value_dim": 10,
        "learned_temperature": True,
    },
}
GRAPH = "attend.fp32.onnx"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("choices", [pytest.param(choices, id=name) for name, choices in ENCODERS.items()])
def test_weights_and_contexts_equal_the_formulas(choices: dict[str, Any], tmp_path: Path) -> None:
    encoder = random_encoder(**choices)
    config, formula = encoder.config, oracle_of(encoder)
    write_graph(encoder.fold_temperatures(), AttentionWeightsLayout, tmp_path / GRAPH)
    graph = AttentionWeightsGraph.open(tmp_path / GRAPH)
    for length in (config.min_tokens, 3, 17, config.max_tokens):
        (sequence,) = random_sequences(config, (length,))
        expected = formula.attention(sequence)
        for query in (0, length - 1):
            actual = graph.run(sequence, AttentionSelection(range(config.attention_layers), range(config.heads), query))
            assert_close(actual.weights, np.stack([layer for layer, _ in expected]))
            assert_close_to_scale(actual.context, np.stack([context[:, query] for _, context in expected]))
        np.testing.assert_allclose(actual.weights.sum(-1), 1, rtol=0, atol=1e-6)
        for layer, (weights, context) in enumerate(expected):
            for head in range(config.heads):
                vectors = graph.run(sequence, AttentionSelection([layer], [head], length - 1, vectors=True)).vectors
                assert vectors is not None
                assert_close_to_scale(weights[head, -1] @ vectors.values, context[head, -1])
                seen = weights[head, -1] > 0
                if seen.any() and not choices.get("distance_bias"):
                    scores = vectors.keys @ vectors.query / np.sqrt(len(vectors.query))
                    raw = np.where(seen, np.exp(scores - scores.max()), 0)
                    assert_close(raw / raw.sum(), weights[head, -1])
        masked = np.stack([layer for layer, _ in expected]) == 0
        assert (actual.weights[masked] == 0).all()
        has_mask = config.mask != "none" or config.decoder is not None
        assert masked.any() == (has_mask and length > 1)


@pytest.mark.usefixtures("runs_graphs", "runs_transformers")
def test_the_values_of_a_decoder_with_grouped_queries_are_those_of_transformers(tmp_path: Path) -> None:
    model = save_family(tmp_path, "Qwen3", num_key_value_heads=2, head_dim=8)
    write_graph(read_checkpoint(tmp_path).encoder, AttentionWeightsLayout, tmp_path / GRAPH)
    own, values = model.get_submodule("layers.1.self_attn.v_proj"), []
    own.register_forward_hook(lambda _, __, output: values.append(output[0].numpy()))
    ids = np.arange(9) * 5
    with torch.inference_mode():
        model(torch.from_numpy(ids)[None])
    graph = AttentionWeightsGraph.open(tmp_path / GRAPH)
    for head in range(4):
        attention = graph.run(ids, AttentionSelection([1], [head], 6, vectors=True))
        vectors, weights = attention.vectors, attention.weights[0, 0, 6]
        assert vectors is not None
        assert attention.context is not None
        # Two heads share the values of a group.
        assert_close_to_scale(vectors.values, np.split(values[0], 2, axis=1)[head // 2])
        assert_close_to_scale(attention.context[0, 0], weights @ np.split(values[0], 2, axis=1)[head // 2])
        raw = np.exp(vectors.keys @ vectors.query / np.sqrt(8)) * (np.arange(9) <= 6)
        assert_close(raw / raw.sum(), weights)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_attention_weights_change_no_byte_of_other_graphs(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    contents: list[dict[str, bytes]] = []
    for plans in (GRAPHS[:1], (GRAPHS[0], ATTENTION_WEIGHTS_GRAPH)):
        folder = tmp_path / str(len(plans))
        export_bundle(encoder, None, folder, "tiny", plans=plans)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"})
    assert contents[1].pop(GRAPH)
    assert contents[0] == contents[1] != {}


def test_the_manifest_names_the_graph_and_every_runtime_can_load_it(text_bundle: Path) -> None:
    attend = Bundle.open(text_bundle).manifest.attend
    assert (attend.file, attend.lowering, attend.precision) == (GRAPH, LOWERING_ATTEND, PRECISION_FP32)
    assert attend.weights_file == "weights.fp32.bin"
    model = onnx.load(text_bundle / GRAPH, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert [value.name for value in model.graph.input] == ["input_ids"]
    kinds = ("weights", "context", "queries", "keys", "values")
    assert [value.name for value in model.graph.output] == [f"{kind}_{layer}" for layer in (0, 1) for kind in kinds]


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("scale", [1.0, *exhaustive(1e-7)])
def test_a_graph_with_wrong_contexts_is_left_out_whatever_their_magnitude(scale: float, tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    value = encoder.get_submodule("layers.0.attention.value")
    for parameter in value.parameters():
        parameter.data *= scale
    write_graph(encoder, AttentionWeightsLayout, tmp_path / GRAPH)
    reference = Reference.compute(encoder)
    for sign in (1, -1):
        for parameter in value.parameters():
            parameter.data *= sign
        check_attention_weights(tmp_path / GRAPH, AttentionReference.compute(encoder, reference), lambda line: None)
        assert (tmp_path / GRAPH).exists() == (sign == 1)


def test_a_graph_out_of_tolerance_is_left_out_and_its_difference_reported(
    feature_bundle: Path, feature_encoder: Encoder, tmp_path: Path
) -> None:
    copied = tmp_path / "bundle"
    shutil.copytree(feature_bundle, copied)
    other = copy.deepcopy(feature_encoder)
    other.get_submodule("layers.1.attention.query").get_parameter("weight").data *= 1.001
    reference = Reference.compute(feature_encoder)
    lines: list[str] = []
    check_attention_weights(copied / GRAPH, AttentionReference.compute(feature_encoder, reference), lines.append)
    assert (copied / GRAPH).exists()
    check_attention_weights(copied / GRAPH, AttentionReference.compute(other, reference), lines.append)
    assert not (copied / GRAPH).exists()
    near, far = (float(line.split()[-1]) for line in lines[:2])
    assert near <= 1e-5 < far
    assert len(lines) == 3
    assert all(GRAPH in line for line in lines)
    assert "1e-05" in lines[2]
