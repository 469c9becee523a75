"""Rewrites of traced graphs that save a GPU passes over its memory.

On a GPU, a product with a bias passes over the result twice: once to write the bias, once to add the product. An
operator that reads the result anyway adds the bias at no cost.
"""

import onnx_ir as ir

_CONTRIB = "com.microsoft"
# Index of the bias among the inputs of operators that can add one.
_BIAS = {"Gemm": 2, "BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4}


def defer_biases(model: ir.Model) -> None:
    """Move the bias of a product into the Gelu or SkipLayerNormalization that reads the product."""
    model.graph.opset_imports[_CONTRIB] = 1
    for node in model.graph:
        if node.op_type not in ("Gelu", "SkipLayerNormalization"):
            continue
        product = producing_gemm(node, 0)
        if product is None or len(product.inputs) <= _BIAS["Gemm"] or len(product.outputs[0].uses()) > 1:
            continue
        if node.op_type == "Gelu":
            # FastGelu is the tanh approximation.
            node.op_type = "FastGelu" if node.attributes.get_string("approximate") == "tanh" else "BiasGelu"
            node.domain, node.version = _CONTRIB, 1
            node.attributes.clear()
        node.resize_inputs(_BIAS[node.op_type] + 1)
        node.replace_input_with(_BIAS[node.op_type], product.inputs[_BIAS["Gemm"]])
        product.resize_inputs(_BIAS["Gemm"])


def producing_gemm(node: ir.Node, index: int) -> ir.Node | None:
    """Return the product that computes a node's input, or None where another operator computes it."""
    value = node.inputs[index]
    product = None if value is None else value.producer()
    return product if product is not None and product.op_type == "Gemm" else None
