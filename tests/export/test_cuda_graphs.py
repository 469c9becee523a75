"""Graphs for CUDA equal the formulas in onnx's reference evaluator, and have the operators that are fast on a GPU."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.graphs import write_graph
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CUDA
from headwaiter_server.runtime.bundle import Bundle
from tests.export.helpers import (
    BATCH_LENGTHS,
    assert_close_to_scale,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
)


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def count_with_input(nodes: list[onnx.NodeProto], operator: str, index: int) -> int:
    """Count the nodes of an operator that have an input of this index."""
    return sum(node.op_type == operator and len(node.input) > index for node in nodes)


@pytest.mark.parametrize(
    ("choices", "nodes"),
    [
        ({"activation": "gelu_tanh", "norm": "pre"}, {"FastGelu": 1, "Gemm": 7}),
        # Fused kernels need heads of a multiple of 8 values.
        ({"heads": 2, "head_dim": 16, "value_dim": 8}, {"PackedMultiHeadAttention": 1, "Pad": 0, "Slice": 0}),
        ({"head_dim": 4, "value_dim": 8}, {"PackedMultiHeadAttention": 1, "Pad": 2, "Slice": 0}),
        ({"head_dim": 8, "value_dim": 20}, {"PackedMultiHeadAttention": 1, "Pad": 1, "Slice": 1}),
        ({"head_dim": 6, "value_dim": 5}, {"PackedMultiHeadAttention": 1, "Pad": 3, "Slice": 1}),
        ({"head_dim": 6, "value_dim": 5, "mask": "causal"}, {"PackedMultiHeadAttention": 0, "Softmax": 1}),
        # No fused kernel has heads of more than 1,024 values.
        ({"heads": 1, "head_dim": 4, "value_dim": 1025}, {"PackedMultiHeadAttention": 0, "Softmax": 1}),
    ],
)
def test_graphs_for_cuda_equal_the_formulas(choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, PackedCuda, path)
    counts = Counter(node.op_type for node in nodes_of(path))
    assert {operator: counts[operator] for operator in nodes} == nodes
    oracle = oracle_of(encoder)
    for lengths in BATCH_LENGTHS:
        sequences = random_sequences(encoder.config, lengths)
        expected = np.concatenate([oracle.hidden(each) for each in sequences])
        assert_close_to_scale(run_graph(path, "reference", sequences).hidden, expected)


def test_in_graphs_for_cuda_the_operator_after_a_product_adds_the_bias(text_bundle: Path) -> None:
    bundle = Bundle.open(text_bundle)
    layers = bundle.manifest.layers
    for graph in bundle.manifest.graphs:
        if graph.lowering == LOWERING_PACKED_CUDA:
            nodes = nodes_of(text_bundle / graph.file)
            operators = Counter(node.op_type for node in nodes)
            assert (operators["BiasGelu"], operators["SkipLayerNormalization"]) == (layers, 2 * layers)
            assert count_with_input(nodes, "SkipLayerNormalization", 4) == 2 * layers
            # Queries, keys and values keep their biases: the flash route of attention takes none.
            assert count_with_input(nodes, "Gemm", 2) == 3 * layers
