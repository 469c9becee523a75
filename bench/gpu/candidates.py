"""Other ways to write attention for CUDA. No bundle uses them; the GPU check measures whether one should."""

from typing import ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from headwaiter_export.attention_layout import Fusions
from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.fusion import producing_gemm


def fuse_projections(model: ir.Model) -> None:
    """Replace the three Gemms of query, key and value before a PackedMultiHeadAttention by one Gemm.

    Each row of its result has the operator's packed form [heads, 3, head_dim]. That form needs values as wide as keys;
    other nodes stay unchanged. The fused weights cannot be shared with other graphs.
    """
    for node in model.graph:
        if node.op_type != "PackedMultiHeadAttention":
            continue
        products = [product for product in (producing_gemm(node, index) for index in range(3)) if product is not None]
        constants = [[_constant(value) for value in product.inputs[1:]] for product in products]
        if len(products) < 3 or len({tuple(array.shape for array in arrays) for arrays in constants}) > 1:
            continue
        heads = node.attributes.get_int("num_heads", 1)
        packed = [_interleave_heads(arrays, heads) for arrays in zip(*constants, strict=True)]
        head_dim = len(packed[0]) // (3 * heads)
        product = ir.node(
            "Gemm", [products[0].inputs[0], *(_initializer(model, array) for array in packed)], {"transB": 1}
        )
        shape = _initializer(model, np.array([-1, heads, 3, head_dim]))
        split = ir.node("Reshape", [product.outputs[0], shape])
        model.graph.insert_before(node, [product, split])
        for index, value in enumerate([split.outputs[0], None, None]):
            node.replace_input_with(index, value)
    RemoveUnusedNodesPass()(model)


def _constant(value: ir.Value | None) -> NDArray[np.generic]:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _interleave_heads(arrays: tuple[NDArray[np.generic], ...], heads: int) -> NDArray[np.generic]:
    """Join weights of queries, keys and values, [H·head_dim, ...] each, head by head: [H·3·head_dim, ...]."""
    per_head = [array.reshape(heads, -1, *array.shape[1:]) for array in arrays]
    return np.concatenate(per_head, axis=1).reshape(-1, *arrays[0].shape[1:])


def _initializer(model: ir.Model, array: NDArray[np.generic]) -> ir.Value:
    name = f"fused_{len(model.graph.initializers)}"
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    model.graph.register_initializer(value)
    return value


class FusedCuda(PackedCuda):
    """`PackedCuda` with queries, keys and values from one product."""

    FUSIONS: ClassVar[Fusions] = (*PackedCuda.FUSIONS, fuse_projections)
