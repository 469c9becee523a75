"""The graphs of a bundle.

A bundle holds several graphs of one encoder. Each graph has the attention layout and the precision that suit a provider
of ONNX Runtime, and a server runs the graph for its device. `bundle/export.py` writes the graphs that this module
lists.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.graph_layout import GraphLayout, Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda, PackedCudaSeparateNorms
from headwaiter_export.graphs.padded import Padded
from headwaiter_export.graphs.portable import Portable
from headwaiter_proto.encoder_pb2 import PRECISION_BF16, PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import (
    LOWERING_ATTEND,
    LOWERING_PACKED_CPU,
    LOWERING_PACKED_CUDA,
    LOWERING_PADDED,
    LOWERING_PORTABLE,
    Lowering,
)
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX


@dataclass(frozen=True)
class GraphPlan:
    """One graph of a bundle; `lowering` is the manifest's name of the attention layout."""

    file: str
    layout: type[GraphLayout]
    lowering: Lowering
    precision: Precision
    provider: Provider

    @property
    def stored(self) -> Precision:
        """The precision of the graph and its weights in their files; OpenVINO rounds those of bf16 itself."""
        return PRECISION_FP32 if self.precision == PRECISION_BF16 else self.precision


GRAPHS = (
    GraphPlan("packed-cpu.fp32.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp32.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP32, "cuda"),
    GraphPlan("portable.fp32.onnx", Portable, LOWERING_PORTABLE, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp16.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP16, "cuda"),
    GraphPlan("packed-cpu.int8.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_INT8, "cpu"),
    # OpenVINO cannot read the loop of `PackedCpu`: its body uses values from outside.
    GraphPlan("packed-cpu.bf16.onnx", Packed, LOWERING_PACKED_CPU, PRECISION_BF16, "cpu"),
)


# Written last, so that the weights of the other graphs have the same place in the shared file with or without it.
ATTENTION_WEIGHTS_GRAPH = GraphPlan("attend.fp32.onnx", AttentionWeightsLayout, LOWERING_ATTEND, PRECISION_FP32, "cpu")


EVERY_GRAPH = (*GRAPHS, ATTENTION_WEIGHTS_GRAPH)


# The graphs in which a module of the caller computes the rows.
MODULE_GRAPHS = tuple(
    plan for plan in GRAPHS if plan.lowering != LOWERING_PORTABLE and plan.precision != PRECISION_INT8
)


# The graphs of a module of the caller that cannot run on packed rows; servers on CPUs and on CUDA share that in fp32.
PADDED_GRAPHS = (
    GraphPlan("padded.fp32.onnx", Padded, LOWERING_PADDED, PRECISION_FP32, "cpu"),
    GraphPlan("padded.fp16.onnx", Padded, LOWERING_PADDED, PRECISION_FP16, "cuda"),
)


# The graphs that an export writes if nobody chooses graphs: bf16 needs another runtime, and more time at each export.
DEFAULT_GRAPHS = tuple(plan for plan in EVERY_GRAPH if plan.precision != PRECISION_BF16)


# The graph of an ONNX file, in the precision of the file. Servers on CPUs run each, which was compared on a CPU.
ONNX_GRAPHS = {
    precision: GraphPlan(f"padded.{name}.onnx", Padded, LOWERING_PADDED, precision, "cpu")
    for name, precision in (("fp32", PRECISION_FP32), ("fp16", PRECISION_FP16), ("int8", PRECISION_INT8))
}


# In the order in which they are written: int8, which takes the most memory, finds memory that is not fragmented yet.
WEIGHTS_FILES = {
    PRECISION_INT8: "weights.int8.bin",
    PRECISION_FP32: "weights.fp32.bin",
    PRECISION_FP16: "weights.fp16.bin",
}


def chosen_plans(
    kinds: Collection[str], precisions: Collection[str], among: Collection[GraphPlan] = EVERY_GRAPH
) -> tuple[GraphPlan, ...]:
    """Return the plans of these kinds and precisions, named as in the names of their files.

    Raises:
        ConfigError: no graph that a server can run has one of these kinds and one of these precisions.
    """
    names = {f"{kind}.{precision}.onnx" for kind in kinds for precision in precisions}
    plans = tuple(plan for plan in among if plan.file in names)
    not_served = LOWERING_PORTABLE, LOWERING_ATTEND
    served = [plan.file.removesuffix(".onnx") for plan in among if plan.lowering not in not_served]
    if not any(plan.file.removesuffix(".onnx") in served for plan in plans):
        raise ConfigError(
            f"no server could run the bundle: let --graphs and --precision keep one of {', '.join(served)}"
        )
    return plans


def suitable_plans(
    plans: Collection[GraphPlan], *, largest_magnitude: float, fuses_norms: bool
) -> tuple[GraphPlan, ...]:
    """Return the plans whose graphs compute a model correctly.

    Args:
        plans: the plans to choose from.
        largest_magnitude: largest weight or activation; above 65,504, the graphs in fp16 are left out.
        fuses_norms: whether graphs for CUDA may use SkipLayerNormalization; they use two operators otherwise.
    """
    fitting = (plan for plan in plans if plan.precision != PRECISION_FP16 or largest_magnitude <= FLOAT16_MAX)
    return tuple(
        replace(plan, layout=PackedCudaSeparateNorms) if plan.layout is PackedCuda and not fuses_norms else plan
        for plan in fitting
    )
