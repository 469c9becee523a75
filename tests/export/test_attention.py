"""The graph of attention weights says what the formulas say, and changes nothing in the graphs beside it."""

import copy
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headwaiter_export import bundle
from headwaiter_export.attention_layout import Attending
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import WeightsFile, trace
from headwaiter_export.parity import Reference
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_proto.manifest_pb2 import LOWERING_ATTEND
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.packing import pack
from tests.export.helpers import assert_close, assert_close_to_scale, draw, oracle_of, random_encoder

FORMS: dict[str, dict[str, Any]] = {
    "as in BERT": {"vocabulary_size": 50},
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
    "rotary positions, learned temperatures, wide values": {
        "feature_width": 6,
        "positions": "rotary",
        "head_dim": 6,
        "value_dim": 10,
        "learned_temperature": True,
    },
}
GRAPH = "attend.fp32.onnx"


@pytest.mark.parametrize("choices", FORMS.values(), ids=FORMS)
def test_weights_and_contexts_are_the_formulas(choices: dict[str, Any], tmp_path: Path) -> None:
    encoder = random_encoder(**choices)
    config, formula = encoder.config, oracle_of(encoder)
    with WeightsFile(tmp_path / "weights.bin") as weights:
        weights.write_graph(trace(encoder.folded(), Attending, pack(draw(config, (3, 2)))), tmp_path / GRAPH)
    graph = AttentionWeightsGraph.open(tmp_path / GRAPH)
    for length in (config.min_tokens, 3, 17, config.max_tokens):
        (sequence,) = draw(config, (length,))
        expected = formula.attention(sequence)
        for query in (0, length - 1):
            actual = graph.run(sequence, AttentionSelection(range(config.layers), range(config.heads), query))
            assert_close(actual.weights, np.stack([layer for layer, _ in expected]))
            assert_close_to_scale(actual.context, np.stack([context[:, query] for _, context in expected]))
        np.testing.assert_allclose(actual.weights.sum(-1), 1, rtol=0, atol=1e-6)
        masked = np.stack([layer for layer, _ in expected]) == 0
        assert (actual.weights[masked] == 0).all()
        assert masked.any() == (config.mask != "none" and length > 1)


def test_the_graphs_beside_it_keep_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    traced = cache(lambda lowering: trace(encoder, lowering, pack(draw(encoder.config, (3, 2)))))
    monkeypatch.setattr(bundle, "trace", lambda _encoder, lowering, _example: traced(lowering))
    write = WeightsFile.write_graph
    contents: list[dict[str, bytes]] = []
    for attends in (True, False):
        if not attends:
            monkeypatch.setattr(
                WeightsFile, "write_graph", lambda self, model, path: path.name == GRAPH or write(self, model, path)
            )
        folder = tmp_path / str(attends)
        folder.mkdir()
        bundle._write_graphs({PRECISION_FP32: encoder}, bundle.GRAPHS[:1], folder, lambda line: None)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0].pop(GRAPH)
    assert contents[0] == contents[1] != {}


def test_a_bundle_names_it_and_any_runtime_can_load_it(text_bundle: Path) -> None:
    attend = Bundle.open(text_bundle).manifest.attend
    assert (attend.file, attend.lowering, attend.precision) == (GRAPH, LOWERING_ATTEND, PRECISION_FP32)
    assert attend.weights_file == "weights.fp32.bin"
    model = onnx.load(text_bundle / GRAPH, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert [value.name for value in model.graph.input] == ["input_ids"]
    assert [value.name for value in model.graph.output] == ["weights_0", "context_0", "weights_1", "context_1"]


def test_a_graph_out_of_tolerance_is_left_out_and_its_difference_told(
    feature_bundle: Path, feature_encoder: Encoder, tmp_path: Path
) -> None:
    copied = tmp_path / "bundle"
    shutil.copytree(feature_bundle, copied)
    other = copy.deepcopy(feature_encoder)
    other.get_submodule("layers.1.attention.query").get_parameter("weight").data *= 1.001
    reference = Reference.of(feature_encoder)
    lines: list[str] = []
    assert bundle._check_attention(copied / GRAPH, feature_encoder, reference, lines.append)
    assert not bundle._check_attention(copied / GRAPH, other, reference, lines.append)
    assert [line.partition(" differs")[0] for line in lines[:2]] == [f"{GRAPH}: attention"] * 2
    assert lines[2:] == [f"{GRAPH} is left out, as that is over 1e-05: the bundle does not offer Attend"]
    assert not (copied / GRAPH).exists()
    (copied / "manifest.json").unlink()
    assert not bundle._describe(feature_encoder.config, None, "tiny", bundle.GRAPHS, [], copied).HasField("attend")
