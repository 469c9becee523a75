"""Optimised graphs have the operators that ONNX Runtime runs."""

from pathlib import Path

import onnx

from bench.gpu.optimized_graph import optimized_operators
from headwaiter_server.runtime.bundle import Bundle


def test_optimized_operators_are_those_that_onnx_runtime_runs(text_bundle: Path) -> None:
    path, layers = text_bundle / "packed-cpu.fp32.onnx", Bundle.open(text_bundle).manifest.layers
    operators = optimized_operators(path, "cpu")
    assert operators["Gelu"] == layers
    # ONNX Runtime's optimiser fuses a product with the division before it.
    assert operators["FusedMatMul"] == layers
    written = onnx.load(path, load_external_data=False).graph.node
    assert "FusedMatMul" not in {node.op_type for node in written}
