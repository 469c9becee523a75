"""Rewrites of traced graphs that make them faster on a GPU. The layouts for CUDA list them in `FUSIONS`.

On a GPU, a matrix product (Gemm) with a bias writes its result twice: first the bias, then the sum. One of these passes
over memory is saved if the next operator adds the bias while it reads the result.
"""

import onnx_ir as ir

_CONTRIB = "com.microsoft"
# Index of the bias among the inputs of each operator that can add one.
_BIAS = {"Gemm": 2, "BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4}


def defer_biases(model: ir.Model) -> None:
    """Move the bias of each Gemm into the Gelu or SkipLayerNormalization that reads its result."""
    model.graph.opset_imports[_CONTRIB] = 1
    for node in model.graph:
        if node.op_type not in ("Gelu", "SkipLayerNormalization"):
            continue
        gemm = _producing_gemm(node, 0)
        if gemm is None or len(gemm.inputs) <= _BIAS["Gemm"] or len(gemm.outputs[0].uses()) > 1:
            continue
        if node.op_type == "Gelu":
            # FastGelu is the tanh approximation.
            node.op_type = "FastGelu" if node.attributes.get_string("approximate") == "tanh" else "BiasGelu"
            node.domain, node.version = _CONTRIB, 1
            node.attributes.clear()
        node.resize_inputs(_BIAS[node.op_type] + 1)
        node.replace_input_with(_BIAS[node.op_type], gemm.inputs[_BIAS["Gemm"]])
        gemm.resize_inputs(_BIAS["Gemm"])


def _producing_gemm(node: ir.Node, index: int) -> ir.Node | None:
    """Return the Gemm that computes a node's input of this index; None if another operator computes it."""
    value = node.inputs[index]
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == "Gemm" else None
