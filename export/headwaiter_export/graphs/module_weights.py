"""Rewrite the traced graph of a module of the caller: change weights once instead of computing in every batch.

`fold_tables` is about embeddings. Many modules add the vector of a token type that all tokens have, and look up the
position of a token in a table of the numbers 0 to n − 1.

`cut_products` is about linear layers. Many modules compute queries, keys and values as one product, or a gate and what
it multiplies, and cut the result. Cutting the result copies it in every batch; weights are cut once.

Both keep the formula of each number.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from headwaiter_export.graphs.batch_axis import RESHAPING, source_of

# Operators whose results have no other numbers than their first input.
_SELECTING = {*RESHAPING, "Expand", "Gather", "GatherElements", "Slice"}
# Queries, keys, values and a gate. Many narrow products would cost more than their cuts.
_MOST_PARTS = 4


def fold_tables(model: ir.Model) -> None:
    """Fold the row that all tokens take from one table into another table, and leave out tables of 0 to n − 1."""
    for node in list(model.graph):
        if node.op_type == "Gather":
            _leave_out(model.graph, node)
        elif node.op_type == "Add":
            _fold_row(model.graph, node)
    RemoveUnusedNodesPass()(model)


def _leave_out(graph: ir.Graph, gather: ir.Node) -> None:
    """Replace what a table of the numbers 0 to n − 1 has at the positions of tokens by these positions."""
    table, indices = gather.inputs
    numbers = _numbers(table)
    # Indices that are no positions may be negative, and then count from the end of a table.
    if numbers is None or indices is None or source_of(indices).name != "positions":
        return
    lead = numbers.ndim - 1
    is_last = gather.attributes.get_int("axis", 0) in (lead, -1)
    if is_last and numbers.dtype == np.int64 and np.array_equal(numbers.ravel(), np.arange(numbers.shape[-1])):
        axes = _constant(graph, f"{gather.outputs[0].name}/axes", np.arange(lead))
        _replace(graph, gather.outputs[0], ir.node("Unsqueeze", [indices, axes]))


def _fold_row(graph: ir.Graph, add: ir.Node) -> None:
    """Fold the row that all tokens take from one table of a sum into the other table, or add it as a constant."""
    (output,) = add.outputs
    if output.shape is None or output.shape.has_unknown_dim():
        return
    for place, (part, other) in enumerate(zip(add.inputs, reversed(add.inputs), strict=True)):
        row = _common_row(part)
        if row is None or part is None or other is None or not part.shape == other.shape == output.shape:
            continue
        lookup = _lookup(other)
        table = None if lookup is None else lookup.inputs[0]
        rows = _numbers(table)
        if lookup is None or table is None or rows is None or len(table.uses()) > 1 or len(other.uses()) > 1:
            add.replace_input_with(place, _constant(graph, f"{part.name}/row", row))
        else:
            lookup.replace_input_with(0, _constant(graph, f"{table.name}/folded", rows + row))
            output.replace_all_uses_with(other, replace_graph_outputs=True)
        return


def _common_row(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the row of a table that all tokens take; None if tokens may take different rows."""
    lookup = _lookup(value)
    rows = None if lookup is None else _numbers(lookup.inputs[0])
    if lookup is None or rows is None:
        return None
    indices = lookup.inputs[1]
    while indices is not None and (node := indices.producer()) is not None and node.op_type in _SELECTING:
        indices = node.inputs[0]
    numbers = _numbers(indices)
    if numbers is None or not numbers.size or np.ptp(numbers):
        return None
    return np.asarray(rows[numbers.flat[0]])


def _lookup(value: ir.Value | None) -> ir.Node | None:
    """Return the operator that looks up a value in a table [n, d]; None if another operator computes the value."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return None
    table = node.inputs[0]
    return node if table is not None and table.shape is not None and len(table.shape) == 2 else None


def cut_products(model: ir.Model) -> None:
    """Compute the parts of a product apart, if all that reads the product takes neighbouring columns of it, in float32.

    Graphs in float16 run on CUDA alone, where one product and one cut are fewer kernels than three products.
    """
    graph = model.graph
    for gemm in [node for node in graph if node.op_type == "Gemm"]:
        product = _reshaped(gemm.outputs[0], graph)
        columns = _columns(gemm, product)
        if columns is None or not all(_are_of_columns(each, columns) for each in gemm.inputs[1:]):
            continue
        readers = [_parts(node, columns) if index == 0 else [] for node, index in product.uses()]
        parts = [part for reader in readers for part in reader]
        is_cut = product not in graph.outputs and 1 < len(parts) <= _MOST_PARTS and all(readers)
        if is_cut and all(_are_neighbours(taken) for _, taken in parts):
            lead = [] if product.shape is None else product.shape[: -columns.ndim]
            for part, taken in parts:
                _compute_part(graph, gemm, lead, part, taken)
    RemoveUnusedNodesPass()(model)


def _reshaped(value: ir.Value, graph: ir.Graph) -> ir.Value:
    """Return a value in the shape in which the graph uses it."""
    while value not in graph.outputs and len(uses := [*value.uses()]) == 1 and uses[0].node.op_type in RESHAPING:
        value = uses[0].node.outputs[0]
    return value


def _are_of_columns(value: ir.Value | None, columns: NDArray[Any]) -> bool:
    """Return whether a weight or a bias in float32 has numbers for each column."""
    numbers = _numbers(value)
    return numbers is not None and numbers.dtype == np.float32 and columns.size in numbers.shape


def _columns(gemm: ir.Node, product: ir.Value) -> NDArray[Any] | None:
    """Return the numbers of the columns of a product [T, d], as they lie in the last axes of its final shape.

    None if the columns are not the last axes, or if several of the first axes have no constant size.
    """
    if product.shape is None or (own := gemm.outputs[0].shape) is None:
        return None
    for lead in reversed(range(len(product.shape))):
        sizes = [size for size in product.shape[lead:] if isinstance(size, int)]
        if len(sizes) == len(product.shape) - lead and math.prod(sizes) == own[1]:
            unknown = sum(not isinstance(size, int) for size in product.shape[:lead])
            return None if unknown > 1 else np.arange(math.prod(sizes)).reshape(sizes)
    return None


def _parts(reader: ir.Node, columns: NDArray[Any]) -> list[tuple[ir.Value, NDArray[Any]]]:
    """Return the results of an operator that cuts a product, each with its columns; empty for another operator."""
    source, *others = reader.inputs
    settings = [numbers for each in others if (numbers := _numbers(each)) is not None]
    if source is None or source.shape is None or len(settings) < len(others):
        return []
    rank, outputs = len(source.shape), reader.outputs
    lead = rank - columns.ndim
    axis = reader.attributes.get_int("axis", 0) % rank - lead
    if reader.op_type == "Slice" and len(settings) > 2:
        cuts = [slice(None)] * rank
        for start, end, place, *step in zip(*(each.tolist() for each in settings), strict=True):
            cuts[place] = slice(start, end, *step)
        return [(outputs[0], columns[tuple(cuts[lead:])])] if cuts[:lead] == [slice(None)] * lead else []
    if reader.op_type == "Gather" and axis >= 0:
        return [(outputs[0], columns.take(settings[0], axis))]
    if reader.op_type == "Split" and axis >= 0:
        sizes = [None if each.shape is None else each.shape[axis + lead] for each in outputs]
        ends = np.cumsum([size for size in sizes if isinstance(size, int)])
        if len(ends) == len(outputs) and ends[-1] == columns.shape[axis]:
            return list(zip(outputs, np.split(columns, ends[:-1], axis), strict=True))
    return []


def _are_neighbours(columns: NDArray[Any]) -> bool:
    return columns.size > 0 and np.array_equal(columns.ravel(), np.arange(columns.size) + columns.flat[0])


def _compute_part(
    graph: ir.Graph, gemm: ir.Node, lead: Sequence[int | ir.SymbolicDim], part: ir.Value, columns: NDArray[Any]
) -> None:
    """Compute a part of a product with its columns of the weights; `lead` are the sizes of the axes before these."""
    own = gemm.outputs[0].shape
    assert own is not None
    x, weight, *bias = gemm.inputs
    first, end = int(columns.flat[0]), int(columns.flat[-1]) + 1
    cut = np.s_[first:end] if gemm.attributes.get_int("transB", 0) else np.s_[:, first:end]
    inputs = [x]
    for value, place in ((weight, cut), *((each, np.s_[..., first:end]) for each in bias)):
        numbers = _numbers(value)
        assert numbers is not None
        assert value is not None
        inputs.append(_constant(graph, f"{value.name}/{first}-{end}", numbers[place]))
    computed = ir.Value(name=f"{part.name}/columns", shape=ir.Shape([own[0], columns.size]), type=part.type)
    new = ir.Node("", "Gemm", inputs, gemm.attributes.values(), outputs=[computed], version=gemm.version)
    sizes = [size if isinstance(size, int) else -1 for size in (*lead, *columns.shape)]
    shape = _constant(graph, f"{part.name}/shape", sizes)
    _replace(graph, part, new, ir.node("Reshape", [computed, shape]))


def _replace(graph: ir.Graph, value: ir.Value, *nodes: ir.Node) -> None:
    """Let the last of these operators compute a value."""
    node, (output,) = value.producer(), nodes[-1].outputs
    assert node is not None
    output.name, value.name = value.name, f"{value.name}/unused"
    output.shape, output.type = value.shape, value.type
    graph.insert_before(node, nodes)
    value.replace_all_uses_with(output, replace_graph_outputs=True)


def _numbers(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the numbers of a constant; None for another value."""
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _constant(graph: ir.Graph, name: str, numbers: ArrayLike) -> ir.Value:
    """Return the constant of a name, which layers of the same weights share."""
    if name not in graph.initializers:
        graph.register_initializer(ir.val(name, const_value=ir.tensor(np.asarray(numbers))))
    return graph.initializers[name]
