"""The graphs of a bundle.

A bundle holds several graphs of one encoder. Each graph has the attention layout and the precision that suit a provider
of ONNX Runtime, and a server runs the graph for its device. `bundle.py` writes the graphs that this module lists.
"""

from dataclasses import dataclass

from headwaiter_export.attention_layout import AttentionWeightsLayout, PackedCpu, Portable
from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.graphs import GraphLayout
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import (
    LOWERING_ATTEND,
    LOWERING_PACKED_CPU,
    LOWERING_PACKED_CUDA,
    LOWERING_PORTABLE,
    Lowering,
)
from headwaiter_server.runtime.graph import Provider


@dataclass(frozen=True)
class GraphPlan:
    """One graph of a bundle; `lowering` is the manifest's name of the attention layout."""

    file: str
    layout: type[GraphLayout]
    lowering: Lowering
    precision: Precision
    provider: Provider


GRAPHS = (
    GraphPlan("packed-cpu.fp32.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp32.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP32, "cuda"),
    GraphPlan("portable.fp32.onnx", Portable, LOWERING_PORTABLE, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp16.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP16, "cuda"),
    GraphPlan("packed-cpu.int8.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_INT8, "cpu"),
)
# Written last, so that the weights of the other graphs have the same place in the shared file with or without it.
ATTENTION_WEIGHTS_GRAPH = GraphPlan("attend.fp32.onnx", AttentionWeightsLayout, LOWERING_ATTEND, PRECISION_FP32, "cpu")
WEIGHTS_FILES = {
    PRECISION_FP32: "weights.fp32.bin",
    PRECISION_FP16: "weights.fp16.bin",
    PRECISION_INT8: "weights.int8.bin",
}
