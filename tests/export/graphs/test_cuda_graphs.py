"""Graphs for CUDA equal the formulas, and have the operators that are fast on a GPU."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import POOLING_MEAN, PRECISION_FP16, PRECISION_FP32
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CUDA, Manifest
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.graph_file import check_graph
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from tests.export.conftest import keep_graphs
from tests.support.export.helpers import (
    BATCH_LENGTHS,
    assert_equals_formulas,
    operators_of,
    random_encoder,
    random_sequences,
    run_graph,
    shifted_encoder,
)
from tests.support.tiers import exhaustive


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def count_with_input(nodes: list[onnx.NodeProto], operator: str, index: int) -> int:
    """Count the nodes of an operator that have an input of this index."""
    return sum(node.op_type == operator and len(node.input) > index for node in nodes)


def large_encoder(magnitude: float) -> Encoder:
    """Build an encoder whose first layer in the feed-forward block has an activation of this magnitude.

    The second layer makes up for it.
    """
    encoder = random_encoder(feature_width=6, layers=1)
    up, down = (encoder.get_submodule(f"layers.0.feed_forward.{name}") for name in ("up", "down"))
    outputs: list[float] = []
    with up.register_forward_hook(lambda module, inputs, output: outputs.append(output.abs().max().item())):
        Reference.compute(encoder)
    factor = magnitude / max(outputs)
    up.get_parameter("weight").data *= factor
    up.get_parameter("bias").data *= factor
    down.get_parameter("weight").data /= factor
    return encoder


EVERY_RUN: list[tuple[dict[str, Any], dict[str, int]]] = [
    (
        {"activation": "gelu_tanh", "norm": "pre", "final_norm": True, "positions": "rotary"},
        {"FastGelu": 1, "Gemm": 7, "RotaryEmbedding": 2, "SkipLayerNormalization": 2, "Add": 0},
    ),
    ({"head_dim": 6, "value_dim": 5}, {"PackedMultiHeadAttention": 1, "Pad": 3, "Slice": 1}),
]
OTHERS: list[tuple[dict[str, Any], dict[str, int]]] = [
    # Fused kernels need heads of a multiple of 8 values.
    ({"heads": 2, "head_dim": 16, "value_dim": 8}, {"PackedMultiHeadAttention": 1, "Pad": 0, "Slice": 0}),
    ({"head_dim": 4, "value_dim": 8}, {"PackedMultiHeadAttention": 1, "Pad": 2, "Slice": 0}),
    ({"head_dim": 8, "value_dim": 20}, {"PackedMultiHeadAttention": 1, "Pad": 1, "Slice": 1}),
    ({"head_dim": 6, "value_dim": 5, "mask": "causal"}, {"PackedMultiHeadAttention": 1, "Softmax": 0}),
    ({"distance_keys": True}, {"PackedMultiHeadAttention": 0, "Softmax": 1}),
    ({"positions": "rotary_grid"}, {"RotaryEmbedding": 2}),
    # No fused kernel has heads of more than 1,024 values.
    ({"heads": 1, "head_dim": 1026, "positions": "rotary"}, {"RotaryEmbedding": 0, "Softmax": 1}),
    ({"heads": 1, "head_dim": 4, "value_dim": 1025}, {"PackedMultiHeadAttention": 0, "Softmax": 1}),
]


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize(("choices", "nodes"), [*EVERY_RUN, *exhaustive(*OTHERS)])
def test_graphs_for_cuda_equal_the_formulas(choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, PackedCuda, path)
    counts = operators_of(path)
    assert {operator: counts[operator] for operator in nodes} == nodes
    batches = [random_sequences(encoder.config, lengths) for lengths in BATCH_LENGTHS]
    assert_equals_formulas(encoder, partial(run_graph, path, "standard"), batches)


def test_in_graphs_for_cuda_the_operator_after_a_product_adds_the_bias(text_bundle: Path) -> None:
    bundle = Bundle.open(text_bundle)
    layers = bundle.manifest.layers
    for graph in bundle.manifest.graphs:
        if graph.lowering == LOWERING_PACKED_CUDA:
            nodes = nodes_of(text_bundle / graph.file)
            operators = Counter(node.op_type for node in nodes)
            # The first norm is that of the sum of tokens and positions.
            assert (operators["BiasGelu"], operators["SkipLayerNormalization"]) == (layers, 1 + 2 * layers)
            assert count_with_input(nodes, "SkipLayerNormalization", 4) == 2 * layers
            # Graphs in float32 share their weights with the graphs for CPUs.
            merged = graph.precision == PRECISION_FP16
            assert operators["Gemm"] == (4 if merged else 6) * layers
            assert count_with_input(nodes, "Gemm", 2) == (0 if merged else 3 * layers)
            packed = [node for node in nodes if node.op_type == "PackedMultiHeadAttention" and not node.input[1]]
            assert len(packed) == (layers if merged else 0)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_a_model_of_large_means_gets_norms_that_onnx_runtime_does_not_fuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_graphs(monkeypatch, "packed-cuda.fp32.onnx")
    # With these vectors attention is gathered, so all operators of the graph also have a kernel for the CPU.
    encoder = shifted_encoder(30, layers=1, distance_keys=True)
    export_bundle(encoder, None, tmp_path / "bundle", "shifted")
    path, optimized = tmp_path / "bundle" / "packed-cuda.fp32.onnx", tmp_path / "optimized.onnx"
    options = session_options(1)
    options.optimized_model_filepath = str(optimized)
    open_session(path, "cpu", options)
    for graph in (path, optimized):
        operators = operators_of(graph)
        assert (operators["SkipLayerNormalization"], operators["LayerNormalization"]) == (0, 3)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [graph.separate_norms for graph in manifest.graphs] == [True]
    assert 30 < manifest.residual_norm_ratio < 150
    batches = [random_sequences(encoder.config, lengths) for lengths in BATCH_LENGTHS]
    assert_equals_formulas(encoder, partial(run_graph, path, "cpu"), batches)


@pytest.mark.usefixtures("runs_graphs")
def test_a_model_beyond_float16_has_no_graph_in_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_graphs(monkeypatch, "packed-cuda.fp32.onnx", "packed-cuda.fp16.onnx")
    lines: list[str] = []
    export_bundle(large_encoder(7e4), None, tmp_path / "bundle", "large", lines.append)
    assert sorted(path.name for path in (tmp_path / "bundle").glob("*.onnx")) == ["packed-cuda.fp32.onnx"]
    assert not (tmp_path / "bundle" / "weights.fp16.bin").exists()
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [graph.precision for graph in manifest.graphs] == [PRECISION_FP32]
    assert manifest.largest_magnitude.name == "layers.0.feed_forward.up"
    assert manifest.largest_magnitude.value == pytest.approx(7e4, rel=1e-3)
    (line,) = (line for line in lines if line.startswith("fp16: "))
    for fact in ("layers.0.feed_forward.up", f"{manifest.largest_magnitude.value:.6g}", "65504", "no fp16 graph"):
        assert fact in line


@pytest.mark.usefixtures("runs_graphs")
def test_an_activation_below_the_limit_is_reported_with_its_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_graphs(monkeypatch, "packed-cuda.fp16.onnx")
    lines: list[str] = []
    encoder = large_encoder(3e4)
    export_bundle(encoder, None, tmp_path / "bundle", "large", lines.append)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [graph.precision for graph in manifest.graphs] == [PRECISION_FP16]
    assert manifest.largest_magnitude.name == "layers.0.feed_forward.up"
    assert manifest.largest_magnitude.value == pytest.approx(3e4, rel=1e-3)
    assert f"{manifest.largest_magnitude.value:.6g}" in next(line for line in lines if line.startswith("fp16: "))
    hidden = run_graph(
        tmp_path / "bundle" / "packed-cuda.fp16.onnx", "standard", random_sequences(encoder.config, (48, 5))
    ).hidden
    assert hidden is not None
    assert np.isfinite(hidden).all()


def test_an_ordinary_model_keeps_fused_norms(text_bundle: Path) -> None:
    manifest = Bundle.open(text_bundle).manifest
    assert not any(graph.separate_norms for graph in manifest.graphs)
    assert 0 < manifest.residual_norm_ratio < 1
    assert 1 < manifest.largest_magnitude.value < 1000


@pytest.mark.usefixtures("runs_graphs")
def test_queries_and_keys_of_equal_weights_are_one_product(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, d_model=16, heads=2, d_ff=8, max_tokens=16)
    weights = encoder.state_dict()
    for name in list(weights):
        if ".attention.key." in name:
            weights[name] = weights[name.replace(".key.", ".query.")]
    encoder = Encoder.with_weights(encoder.config, weights)
    write_graph(to_float16(encoder), PackedCuda, tmp_path / "graph.onnx")
    assert operators_of(tmp_path / "graph.onnx")["Gemm"] == 5
    sequences = random_sequences(encoder.config, (3, 9))
    actual = run_graph(tmp_path / "graph.onnx", "standard", sequences)
    expected = concatenate(run_in_pytorch(encoder, sequences))
    differences = difference(actual, expected)
    assert violation(differences, PRECISION_FP16) is None


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("rms_norm", [False, True])
@pytest.mark.parametrize(("norm", "sums"), [("post", [False] * 5), ("pre", [False, True, True, True, False])])
def test_sums_that_another_operator_reads_are_outputs_of_the_norm(
    norm: str, sums: list[bool], *, rms_norm: bool, tmp_path: Path
) -> None:
    encoder = random_encoder(vocabulary_size=50, layers=2, norm=norm, final_norm=norm == "pre", rms_norm=rms_norm)
    write_graph(encoder, PackedCuda, tmp_path / "graph.onnx")
    nodes = nodes_of(tmp_path / "graph.onnx")
    # The first sum is that of tokens and positions; its norm gives the first rows.
    fused = "SkipSimplifiedLayerNormalization" if rms_norm else "SkipLayerNormalization"
    norms = [node for node in nodes if node.op_type == fused]
    assert [len(node.output) == 4 for node in norms] == sums
    batches = [random_sequences(encoder.config, BATCH_LENGTHS[-1])]
    assert_equals_formulas(encoder, partial(run_graph, tmp_path / "graph.onnx", "standard"), batches)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("layout", [PackedCpu, PackedCuda])
def test_a_server_finds_the_numbers_of_ids_types_and_positions_in_a_graph(
    layout: type[PackedCpu | PackedCuda], positions: str, tmp_path: Path
) -> None:
    encoder = random_encoder(vocabulary_size=50, token_types=2, positions=positions)
    write_graph(encoder, layout, tmp_path / "graph.onnx")
    manifest = Manifest(vocabulary_size=50, token_types=2, max_tokens=48, width=24, pooling=POOLING_MEAN)
    widths = {"input_ids": 0, "token_type_ids": 0}, {"hidden": 24, "pooled": 24}
    graph = cast(EncoderGraph, SimpleNamespace(widths=lambda: widths))
    content = (tmp_path / "graph.onnx").read_bytes()
    check_graph(graph, content, manifest)
    for field in ("vocabulary_size", "token_types", "max_tokens"):
        wrong = Manifest()
        wrong.CopyFrom(manifest)
        setattr(wrong, field, getattr(manifest, field) + 1)
        with pytest.raises(BundleRefused, match=field):
            check_graph(graph, content, wrong)
