"""Graphs for CUDA, those of bundles and the candidates: right in onnx's reference, and written as a GPU likes them."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headwaiter_export.attention_layout_cuda import Cuda, FusedCuda, GatheredCuda, PackedCuda
from headwaiter_export.bundle import halve
from headwaiter_export.graphs import write_graph
from headwaiter_export.optimized_graph import optimized_operators
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CUDA
from headwaiter_server.runtime.bundle import Bundle
from tests.export.helpers import BATCHES, assert_close_to_scale, cosines, draw, oracle_of, random_encoder, run


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def with_bias(nodes: list[onnx.NodeProto], operator: str, place: int) -> int:
    """How many nodes of an operator have an input at a place."""
    return sum(node.op_type == operator and len(node.input) > place for node in nodes)


@pytest.mark.parametrize(
    ("lowering", "choices", "nodes"),
    [
        (PackedCuda, {"activation": "gelu_tanh", "norm": "pre"}, {"FastGelu": 1, "Gemm": 7}),
        # The operator may write over values that are wider than queries and keys together.
        (PackedCuda, {"head_dim": 4, "value_dim": 8}, {"PackedMultiHeadAttention": 1}),
        (PackedCuda, {"head_dim": 4, "value_dim": 9}, {"Softmax": 1}),
        # With the projection of the features, three products less two; those that are turned first stay apart.
        (FusedCuda, {}, {"PackedMultiHeadAttention": 1, "Gemm": 5}),
        (FusedCuda, {"positions": "rotary"}, {"PackedMultiHeadAttention": 1, "Gemm": 7}),
        (GatheredCuda, {"value_dim": 4}, {"MultiHeadAttention": 1, "Gemm": 7}),
        (GatheredCuda, {"mask": "causal"}, {"MultiHeadAttention": 1, "Gemm": 7}),
    ],
)
def test_graphs_for_cuda_equal_the_formulas(
    lowering: type[Cuda], choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path
) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, lowering, path)
    assert nodes.items() <= Counter(node.op_type for node in nodes_of(path)).items()
    oracle = oracle_of(encoder)
    for lengths in BATCHES:
        sequences = draw(encoder.config, lengths)
        expected = np.concatenate([oracle.hidden(each) for each in sequences])
        assert_close_to_scale(run(path, "reference", sequences).hidden, expected)


def test_a_gathered_graph_in_half_precision_hides_every_token_from_itself(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, mask="self_excluding")
    oracle, path = oracle_of(encoder), tmp_path / "graph.onnx"
    write_graph(halve(encoder), GatheredCuda, path)
    sequences = draw(encoder.config, (5, 48, 2))
    hidden = run(path, "reference", sequences).hidden
    assert hidden is not None
    assert hidden.dtype == np.float16
    assert cosines(hidden, np.concatenate([oracle.hidden(each) for each in sequences])).min() >= 0.9999


def test_in_graphs_for_cuda_whatever_reads_a_product_next_adds_its_bias(text_bundle: Path) -> None:
    bundle = Bundle.open(text_bundle)
    layers = bundle.manifest.layers
    for graph in bundle.manifest.graphs:
        if graph.lowering == LOWERING_PACKED_CUDA:
            nodes = nodes_of(text_bundle / graph.file)
            operators = Counter(node.op_type for node in nodes)
            assert (operators["BiasGelu"], operators["SkipLayerNormalization"]) == (layers, 2 * layers)
            assert with_bias(nodes, "SkipLayerNormalization", 4) == 2 * layers
            # Those of queries, keys and values: the fast route through attention takes none.
            assert with_bias(nodes, "Gemm", 2) == 3 * layers


def test_the_operators_of_a_graph_are_counted_as_onnx_runtime_runs_them(text_bundle: Path) -> None:
    path, layers = text_bundle / "packed-cpu.fp32.onnx", Bundle.open(text_bundle).manifest.layers
    operators = optimized_operators(path, "cpu")
    assert operators["Gelu"] == layers
    # Its optimiser's own, of a product and the division before it.
    assert operators["FusedMatMul"] == layers
    assert "FusedMatMul" not in {node.op_type for node in nodes_of(path)}
