"""Rewrites of traced graphs. The layouts list them in `FUSIONS`.

`fuse_norms` makes graphs faster on a GPU. One kernel adds two arrays of rows and computes LayerNorm or RMSNorm of the
sum. The kernel also writes the sum if other operators read it, such as the next residual sum of a pre-norm layer. On
the CPU, the operator is a scalar loop, 7 times slower than Add and LayerNormalization.

`defer_biases` makes graphs faster on a GPU. There, a matrix product (Gemm) with a bias writes its result twice: first
the bias, then the sum. One of these passes over memory is saved if the next operator adds the bias while it reads the
result.

`merge_projections` makes small batches faster on a GPU, where starting the kernels takes longer than running them. One
Gemm computes queries, keys and values in the form that PackedMultiHeadAttention takes as one input, and that operator
adds the biases: three kernels instead of seven.

`loop_over_blocks` computes part of a graph for one block of its inputs at a time, with ONNX's operator Scan. PyTorch
traces the computation of one block, between the placeholders that `begin_block` and `end_block` write. The operators
between the placeholders then move into the body of a Scan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor

_CONTRIB = "com.microsoft"
# Index of the bias among the inputs of each operator that can add one.
_BIAS = {"Gemm": 2, "BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4}
_LINEAR = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
# Placeholders around the operators of one block.
_DOMAIN = "headwaiter"
_BEGIN, _END = "BeginBlock", "EndBlock"


def fuse_norms(model: ir.Model) -> None:
    """Replace each sum of rows that a norm reads, and the norm, by one operator."""
    graph = model.graph
    for norm in [found for node in graph if (found := _norm(node)) is not None]:
        add = norm.rows.producer()
        if add is None or add.op_type != "Add" or norm.rows in graph.outputs:
            continue
        parts = [each for each in add.inputs if each is not None]
        if _width(norm.rows) is None or {_width(each) for each in parts} != {_width(norm.rows)}:
            continue
        # `defer_biases` moves the bias of the first part.
        parts.sort(key=lambda part: (producer := part.producer()) is None or producer.op_type != "Gemm")
        epsilon = ir.AttrFloat32("epsilon", norm.epsilon)
        # The fourth output is the sum; the two before it are not computed on CUDA.
        outputs = [_like(norm.result)]
        if any(use.node not in norm.nodes for use in norm.rows.uses()):
            outputs += [ir.Value(name=""), ir.Value(name=""), _like(norm.rows)]
        fused = ir.Node(_CONTRIB, norm.operator, [*parts, *norm.weights], [epsilon], outputs=outputs, version=1)
        # Operators between the two may read the sum.
        graph.insert_before(add, fused)
        norm.result.replace_all_uses_with(outputs[0], replace_graph_outputs=True)
        norm.rows.replace_all_uses_with(outputs[-1])
    graph.opset_imports[_CONTRIB] = 1
    RemoveUnusedNodesPass()(model)


@dataclass(frozen=True)
class _Norm:
    """A norm in a graph.

    Attributes:
        operator: the operator that adds two arrays and computes this norm of the sum.
        nodes: the nodes of the norm, in reverse order.
        rows: the rows that the norm reads.
        weights: the scale, and the shift that a LayerNorm may have.
        epsilon: ε.
    """

    operator: str
    nodes: Sequence[ir.Node]
    rows: ir.Value
    weights: Sequence[ir.Value]
    epsilon: float

    @property
    def result(self) -> ir.Value:
        """The normalised rows."""
        return self.nodes[0].outputs[0]


def _norm(node: ir.Node) -> _Norm | None:
    """Return the norm whose last node this is; None for another node."""
    weights = [each for each in node.inputs if each is not None and each.const_value is not None]
    rows = node.inputs[0] if node.inputs else None
    if node.op_type == "LayerNormalization" and rows is not None and len(weights) == len(node.inputs) - 1:
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        return _Norm("SkipLayerNormalization", [node], rows, weights, epsilon)
    if node.op_type != "Mul" or len(weights) != 1:
        return None
    # The operators of `RmsNorm`: weight · x / √(mean(x²) + ε), with x in float32.
    nodes = [node]

    def before(value: ir.Value | None, operator: str) -> Sequence[ir.Value | None]:
        """Return the two inputs of the operator that computes a value; None for both if another operator does."""
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != operator:
            return (None, None)
        nodes.append(producer)
        return producer.inputs

    (normalized,) = (each for each in node.inputs if each is not weights[0])
    exact, root = before(before(normalized, "Cast")[0] or normalized, "Div")
    mean, epsilon_value = before(before(root, "Sqrt")[0], "Add")
    squares, axis = before(mean, "ReduceMean")
    squared, exponent = before(squares, "Pow")
    if exact is None or squared is not exact:
        return None
    constants = [each.const_value.numpy() for each in (axis, exponent, epsilon_value) if each and each.const_value]
    if len(constants) < 3 or constants[0] != -1 or constants[1] != 2 or constants[2].size != 1:
        return None
    rows = before(exact, "Cast")[0] or exact
    return _Norm("SkipSimplifiedLayerNormalization", nodes, rows, weights, constants[2].item())


def _width(value: ir.Value) -> int | None:
    """Return d of rows [T, d]; None for other shapes, such as that of one row for all tokens."""
    shape = value.shape
    if shape is None or len(shape) != 2 or isinstance(shape[0], int) or not isinstance(shape[1], int):
        return None
    return shape[1]


def _like(value: ir.Value) -> ir.Value:
    """Return a new value that takes the name, the shape and the type of a value."""
    name, value.name = value.name, f"{value.name}/unused"
    return ir.Value(name=name, shape=value.shape, type=value.type)


def defer_biases(model: ir.Model) -> None:
    """Move the bias of each Gemm into the Gelu or SkipLayerNormalization that reads its result."""
    model.graph.opset_imports[_CONTRIB] = 1
    for node in model.graph:
        if node.op_type not in ("Gelu", "SkipLayerNormalization"):
            continue
        gemm = _producing_gemm(node, 0)
        bias = None if gemm is None else _bias(gemm)
        if gemm is None or bias is None or len(gemm.outputs[0].uses()) > 1:
            continue
        if node.op_type == "Gelu":
            # FastGelu is the tanh approximation.
            node.op_type = "FastGelu" if node.attributes.get_string("approximate") == "tanh" else "BiasGelu"
            node.domain, node.version = _CONTRIB, 1
            node.attributes.clear()
        node.resize_inputs(_BIAS[node.op_type] + 1)
        node.replace_input_with(_BIAS[node.op_type], bias)
        gemm.resize_inputs(_BIAS["Gemm"])


def merge_projections(model: ir.Model) -> None:
    """Replace the Gemms of queries, keys and values by one Gemm, in float16.

    In float32, the graphs of a bundle for CPUs have separate weights, and merged weights would be stored besides them.
    """
    for attention in [node for node in model.graph if node.op_type == "PackedMultiHeadAttention"]:
        gemms = [gemm for index in range(3) if (gemm := _producing_gemm(attention, index)) is not None]
        if len(gemms) == 3 and all(map(_is_linear, gemms)) and len({gemm.inputs[0] for gemm in gemms}) == 1:
            weights = [_numbers(gemm.inputs[1]) for gemm in gemms]
            if {(each.dtype, each.shape) for each in weights} == {(np.dtype(np.float16), weights[0].shape)}:
                _merge(model.graph, attention, gemms, weights)


def _merge(
    graph: ir.Graph, attention: ir.Node, gemms: Sequence[ir.Node], weights: Sequence[NDArray[np.generic]]
) -> None:
    heads = attention.attributes.get_int("num_heads")
    width, d_model = weights[0].shape
    name = f"{attention.outputs[0].name}/projections"

    def constant(part: str, numbers: NDArray[np.generic]) -> ir.Value:
        value = ir.val(f"{name}/{part}", const_value=ir.tensor(numbers))
        graph.register_initializer(value)
        return value

    # The operator takes rows [T, H, 3, head_dim], and biases [3 · H · head_dim].
    weight = np.stack([each.reshape(heads, width // heads, d_model) for each in weights], 1).reshape(-1, d_model)
    biases = [_bias(gemm) for gemm in gemms]
    zeros = np.zeros(width, weight.dtype)
    numbers_of_biases = [zeros if bias is None else _numbers(bias) for bias in biases]
    product = ir.node("Gemm", [gemms[0].inputs[0], constant("weight", weight)], {"transB": 1})
    shape = np.array([-1, heads, 3, width // heads])
    rows = ir.node("Reshape", [product.outputs[0], constant("shape", shape)])
    product.outputs[0].name, rows.outputs[0].name = f"{name}/product", f"{name}/rows"
    graph.insert_before(attention, [product, rows])
    merged_bias = (
        constant("bias", np.concatenate(numbers_of_biases)) if any(bias is not None for bias in biases) else None
    )
    for index, value in enumerate((rows.outputs[0], None, None, merged_bias)):
        attention.replace_input_with(index, value)
    # Queries and keys of equal weights come from one Gemm.
    for gemm in dict.fromkeys(gemms):
        if not gemm.outputs[0].uses():
            weight_and_bias = gemm.inputs[1:]
            graph.remove(gemm, safe=True)
            for value in weight_and_bias:
                if value is not None and value.name is not None and not value.uses():
                    del graph.initializers[value.name]


def _bias(gemm: ir.Node) -> ir.Value | None:
    return gemm.inputs[_BIAS["Gemm"]] if len(gemm.inputs) > _BIAS["Gemm"] else None


def _is_linear(gemm: ir.Node) -> bool:
    """Return whether a Gemm computes x Wᵀ + b, as a linear layer does."""
    attributes = {name: attribute.value for name, attribute in gemm.attributes.items()}
    return {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **attributes} == _LINEAR


def _numbers(value: ir.Value | None) -> NDArray[np.generic]:
    """Return the numbers of a weight."""
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _producing_gemm(node: ir.Node, index: int) -> ir.Node | None:
    """Return the Gemm that computes a node's input of this index; None if another operator computes it."""
    value = node.inputs[index]
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == "Gemm" else None


def begin_block(stacked: Tensor) -> Tensor:
    """Return one of the blocks [...] that `stacked` [blocks, ...] consists of."""
    return torch.onnx.ops.symbolic(
        f"{_DOMAIN}::{_BEGIN}", (stacked,), dtype=stacked.dtype, shape=stacked.shape[1:], version=1
    )


def end_block(result: Tensor, blocks: int) -> Tensor:
    """Stack the results [...] of all blocks to [blocks, ...]."""
    return torch.onnx.ops.symbolic(
        f"{_DOMAIN}::{_END}", (result,), dtype=result.dtype, shape=(blocks, *result.shape), version=1
    )


def loop_over_blocks(model: ir.Model) -> None:
    """Replace the operators between placeholders by loops over the blocks."""
    graph = model.graph
    of_block: set[ir.Value] = set()
    for node in graph:
        if node.op_type == _BEGIN or (node.op_type != _END and of_block.intersection(node.inputs)):
            of_block.update(node.outputs)
            # Inside the body, ONNX Runtime fuses a transposition with the product that reads it.
            producers = (each.producer() for each in node.inputs if each is not None)
            of_block.update(*(each.outputs for each in producers if each is not None and each.op_type == "Transpose"))
    for number, end in enumerate([node for node in graph if node.op_type == _END]):
        scan = _loop(end, of_block, f"block_{number}")
        graph.insert_before(end, scan)
        end.outputs[0].replace_all_uses_with(scan.outputs[0])
        graph.remove(end, safe=True)
    # Nothing outside the loops reads the values of a block.
    for node in reversed(list(graph)):
        if of_block.intersection(node.outputs):
            graph.remove(node, safe=True)
    del model.graph.opset_imports[_DOMAIN]


def _loop(end: ir.Node, of_block: set[ir.Value], name: str) -> ir.Node:
    """Return a Scan that computes the input of an `end` placeholder for every block.

    Several loops can share operators, so the body has copies of them.
    """
    stacked: list[ir.Value] = []
    arguments: list[ir.Value] = []
    nodes: list[ir.Node] = []
    copies: dict[ir.Value, ir.Value] = {}

    def copy(value: ir.Value) -> ir.Value:
        node = value.producer()
        if value not in of_block or node is None:
            return value
        if value not in copies and node.op_type == _BEGIN:
            (whole,) = (each for each in node.inputs if each is not None)
            assert whole.shape is not None
            copies[value] = ir.Value(name=f"{name}/{value.name}", shape=ir.Shape(whole.shape[1:]), type=whole.type)
            stacked.append(whole)
            arguments.append(copies[value])
        elif value not in copies:
            inputs = [None if each is None else copy(each) for each in node.inputs]
            outputs = [ir.Value(name=f"{name}/{each.name}", shape=each.shape, type=each.type) for each in node.outputs]
            copies.update(zip(node.outputs, outputs, strict=True))
            attributes = node.attributes.values()
            nodes.append(ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs, version=node.version))
        return copies[value]

    (result,) = (copy(each) for each in end.inputs if each is not None)
    body = ir.Graph(arguments, [result], nodes=nodes, name=name)
    output = end.outputs[0]
    return ir.Node(
        "",
        "Scan",
        stacked,
        [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(stacked))],
        outputs=[ir.Value(name=f"{output.name}_stacked", shape=output.shape, type=output.type)],
    )
