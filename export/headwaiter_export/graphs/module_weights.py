"""Rewrite the traced graph of a module of the caller: change weights once instead of computing in every batch.

`fold_tables` is about embeddings. Many modules add the vector of a token type that all tokens have, and look up the
position of a token in a table of the numbers 0 to n − 1.

Every number stays the sum of the same numbers in the same order.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from headwaiter_export.graphs.batch_axis import RESHAPING, source_of

# Operators whose results have no other numbers than their first input.
_SELECTING = {*RESHAPING, "Expand", "Gather", "GatherElements", "Slice"}


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
