"""Rewrites traced graphs so that a GPU goes to its memory less often.

There a product with a bias is two passes over the result, one to write the bias and one to add the product to it, while
an operator that reads the result anyway adds the bias for nothing.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

_CONTRIB = "com.microsoft"
# The place of the bias among the inputs of what can add one.
_BIAS = {"Gemm": 2, "BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4}


def defer_biases(model: ir.Model) -> None:
    """Leave the bias of a product to the Gelu or the SkipLayerNormalization behind it."""
    model.graph.opset_imports[_CONTRIB] = 1
    for node in model.graph:
        if node.op_type not in ("Gelu", "SkipLayerNormalization"):
            continue
        product = _producer(node, 0)
        if product is None or len(product.inputs) <= _BIAS["Gemm"] or len(product.outputs[0].uses()) > 1:
            continue
        if node.op_type == "Gelu":
            # FastGelu is the approximation by tanh.
            node.op_type = "FastGelu" if node.attributes.get_string("approximate") == "tanh" else "BiasGelu"
            node.domain, node.version = _CONTRIB, 1
            node.attributes.clear()
        node.resize_inputs(_BIAS[node.op_type] + 1)
        node.replace_input_with(_BIAS[node.op_type], product.inputs[_BIAS["Gemm"]])
        product.resize_inputs(_BIAS["Gemm"])


def fuse_projections(model: ir.Model) -> None:
    """Compute what PackedMultiHeadAttention takes in one product, where queries, keys and values come from products.

    Its rows are [heads, 3, head_dim] then, the operator's packed form, which knows no values of another width. The
    weights are no longer those of other graphs.
    """
    for node in model.graph:
        if node.op_type != "PackedMultiHeadAttention":
            continue
        products = [product for product in (_producer(node, place) for place in range(3)) if product is not None]
        constants = [[_constant(value) for value in product.inputs[1:]] for product in products]
        if len(products) < 3 or len({tuple(array.shape for array in arrays) for arrays in constants}) > 1:
            continue
        heads = node.attributes.get_int("num_heads", 1)
        packed = [_interleave(arrays, heads) for arrays in zip(*constants, strict=True)]
        head_dim = len(packed[0]) // (3 * heads)
        product = ir.node(
            "Gemm", [products[0].inputs[0], *(_initializer(model, array) for array in packed)], {"transB": 1}
        )
        shape = _initializer(model, np.array([-1, heads, 3, head_dim]))
        split = ir.node("Reshape", [product.outputs[0], shape])
        model.graph.insert_before(node, [product, split])
        for place, value in enumerate([split.outputs[0], None, None]):
            node.replace_input_with(place, value)
    RemoveUnusedNodesPass()(model)


def _producer(node: ir.Node, place: int) -> ir.Node | None:
    """Return the product that an input of a node comes from, if it does."""
    value = node.inputs[place]
    product = None if value is None else value.producer()
    return product if product is not None and product.op_type == "Gemm" else None


def _constant(value: ir.Value | None) -> NDArray[np.generic]:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _interleave(arrays: tuple[NDArray[np.generic], ...], heads: int) -> NDArray[np.generic]:
    """Turn those of queries, keys and values, [H·head_dim, ...] each, into [H·3·head_dim, ...]."""
    per_head = [array.reshape(heads, -1, *array.shape[1:]) for array in arrays]
    return np.concatenate(per_head, axis=1).reshape(-1, *arrays[0].shape[1:])


def _initializer(model: ir.Model, array: NDArray[np.generic]) -> ir.Value:
    name = f"fused_{len(model.graph.initializers)}"
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    model.graph.register_initializer(value)
    return value
