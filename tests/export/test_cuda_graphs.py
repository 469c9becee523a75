"""Graphs for CUDA equal the formulas in onnx's reference evaluator, and have the operators that are fast on a GPU."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

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
from tests.export.standard_attention import missing_kernel

ATTENTION = "PackedMultiHeadAttention"


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def count_with_input(nodes: list[onnx.NodeProto], operator: str, index: int) -> int:
    """Count the nodes of an operator that have an input of this index."""
    return sum(node.op_type == operator and len(node.input) > index for node in nodes)


@pytest.mark.parametrize(
    ("choices", "nodes"),
    [
        ({"activation": "gelu_tanh", "norm": "pre"}, {"FastGelu": 1, "Gemm": 7}),
        # The operator may overwrite values that are wider than queries and keys together.
        ({"head_dim": 4, "value_dim": 8}, {"PackedMultiHeadAttention": 1}),
        ({"head_dim": 4, "value_dim": 9}, {"Softmax": 1}),
    ],
)
def test_graphs_for_cuda_equal_the_formulas(choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, PackedCuda, path)
    assert nodes.items() <= Counter(node.op_type for node in nodes_of(path)).items()
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


@pytest.mark.parametrize("file", ["packed-cuda.fp32.onnx", "packed-cuda.fp16.onnx"])
@pytest.mark.parametrize(("bundle", "missing"), [("text_bundle", ATTENTION), ("causal_bundle", "")])
def test_onnx_runtime_lacks_only_the_kernel_of_attention(
    file: str, bundle: str, missing: str, request: pytest.FixtureRequest
) -> None:
    assert missing_kernel(request.getfixturevalue(bundle) / file) == missing


def node_of(graph: onnx.GraphProto, operator: str) -> onnx.NodeProto:
    """Return the last node of an operator."""
    return [node for node in graph.node if node.op_type == operator][-1]


def use_int64_offsets(graph: onnx.GraphProto) -> None:
    (offsets,) = (each for each in graph.input if each.name == "token_offset")
    offsets.type.tensor_type.elem_type = onnx.TensorProto.INT64


def drop_heads(graph: onnx.GraphProto) -> None:
    attributes = node_of(graph, ATTENTION).attribute
    attributes.remove(next(each for each in attributes if each.name == "num_heads"))


def transpose_weights(graph: onnx.GraphProto) -> None:
    attributes = node_of(graph, "Gemm").attribute
    next(each for each in attributes if each.name == "transB").i ^= 1


@pytest.mark.parametrize(
    ("change", "error"), [(use_int64_offsets, InvalidGraph), (drop_heads, InvalidGraph), (transpose_weights, Fail)]
)
def test_a_graph_of_wrong_types_or_shapes_is_refused_before_a_kernel_is_missed(
    change: Callable[[onnx.GraphProto], None], error: type[Exception], text_bundle: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(text_bundle, tmp_path / "bundle")) / "packed-cuda.fp32.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    onnx.save(model, path)
    with pytest.raises(error):
        missing_kernel(path)
