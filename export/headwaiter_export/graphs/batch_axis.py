"""Rewrite the traced graph of a module of the caller for CUDA.

A module computes on [1, T, d], and linear layers are traced on [T, d], see `packed_rows.py`. So a graph adds and
removes an axis between its layers. These operators launch nothing, but hide from the rewrites of `fusions.py` which
operator reads the result of which.
"""

import numpy as np
import onnx_ir as ir

# Operators that compute each number of an array from the numbers at the same place.
_BY_NUMBER = {"Add", "Div", "Erf", "Gelu", "Mul", "Relu", "Sigmoid", "Sub", "Tanh"}
# Operators that change the shape alone.
RESHAPING = {"Identity", "Reshape", "Squeeze", "Unsqueeze"}


def drop_batch_axis(model: ir.Model) -> None:
    """Compute on rows [T, d] what a graph computes on [1, T, d]."""
    graph = model.graph
    for node in list(graph):
        inputs = [each for each in node.inputs if each is not None]
        if node.op_type in _BY_NUMBER and node.outputs[0] not in graph.outputs:
            rows = [_rows(each) for each in inputs]
            if all(each is not None for each in rows) and len({_width(each) for each in rows}) == 1:
                _compute_on_rows(graph, node, [each for each in rows if each is not None])
        elif node.op_type == "Gather" and _looks_up_rows(node) and node.outputs[0] not in graph.outputs:
            _compute_on_rows(graph, node, [inputs[0], source_of(inputs[1])])
        elif node.op_type in RESHAPING and node.outputs[0] not in graph.outputs and inputs[0].producer() is not None:
            source = source_of(inputs[0])
            if _is_same(source, node.outputs[0]):
                node.outputs[0].replace_all_uses_with(source)
            elif node.op_type == "Reshape" and _has_no_zero(node.inputs[1]):
                node.replace_input_with(0, source)
    for node in reversed(list(graph)):
        if node.op_type in (*_BY_NUMBER, *RESHAPING, "Gather") and not any(
            each.uses() or each in graph.outputs for each in node.outputs
        ):
            graph.remove(node, safe=True)


def _compute_on_rows(graph: ir.Graph, node: ir.Node, rows: list[ir.Value]) -> None:
    """Compute an operator on rows, or on the ids of rows, and add the batch axis to its result."""
    (output,) = node.outputs
    assert output.shape is not None
    result = ir.Value(name=f"{output.name}/rows", shape=ir.Shape(output.shape[1:]), type=output.type)
    new = ir.Node(node.domain, node.op_type, rows, node.attributes.values(), outputs=[result], version=node.version)
    added = ir.Node("", "Unsqueeze", [result, _axis(graph)], outputs=[ir.Value(shape=output.shape, type=output.type)])
    name, output.name = output.name, f"{output.name}/unused"
    added.outputs[0].name = name
    graph.insert_before(node, [new, added])
    output.replace_all_uses_with(added.outputs[0])


def _looks_up_rows(gather: ir.Node) -> bool:
    """Return whether a Gather looks up a row of a table for each of the ids [1, T], which come from ids [T]."""
    table, ids = gather.inputs
    if table is None or ids is None or table.shape is None or ids.shape is None or source_of(ids).shape is None:
        return False
    ranks = len(table.shape), len(ids.shape), len(source_of(ids).shape or ())
    return ranks == (2, 2, 1) and ids.shape[0] == 1 and gather.attributes.get_int("axis", 0) == 0


def _axis(graph: ir.Graph) -> ir.Value:
    """Return the constant [0]."""
    if "batch_axis" not in graph.initializers:
        graph.register_initializer(ir.val("batch_axis", const_value=ir.tensor(np.array([0]))))
    return graph.initializers["batch_axis"]


def _has_no_zero(shape: ir.Value | None) -> bool:
    """Return whether a target of Reshape is a constant that copies no size of the input, as 0 would."""
    return shape is not None and shape.const_value is not None and 0 not in shape.const_value.numpy()


def source_of(value: ir.Value) -> ir.Value:
    """Return the value that has the same numbers before all changes of its shape."""
    node = value.producer()
    while node is not None and node.op_type in RESHAPING and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _rows(value: ir.Value) -> ir.Value | None:
    """Return the rows [T, d] that a value [1, T, d] consists of; None if it has another shape."""
    source, shape = source_of(value), value.shape
    if shape is None or len(shape) != 3 or shape[0] != 1 or _width(source) is None:
        return None
    return source if _width(source) == shape[2] else None


def _is_same(source: ir.Value, value: ir.Value) -> bool:
    """Return whether both are rows [T, d]."""
    return _width(source) is not None and _width(source) == _width(value)


def _width(value: ir.Value | None) -> int | None:
    """Return d of rows [T, d]; None for another shape."""
    if value is None or value.shape is None or len(value.shape) != 2 or not isinstance(value.shape[1], int):
        return None
    return value.shape[1]
