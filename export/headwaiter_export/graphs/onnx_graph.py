"""Turn an ONNX file of the caller into a padded graph: rename inputs and outputs, and append the pooling it lacks."""

from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor, nn

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.pooling import pool
from headwaiter_export.graphs.onnx_encoder import OnnxEncoder
from headwaiter_export.graphs.onnx_file import IDS, MASK, POSITIONS, TYPES
from headwaiter_export.graphs.padded import Padded
from headwaiter_export.graphs.tracing import silence, tidy
from headwaiter_proto.encoder_pb2 import ImageFormat

_FEATURES = "features"
_NAMES = (IDS, MASK, TYPES, _FEATURES, "hidden", "pooled", "logits", "token_logits")
# The sizes of the traced batch.
_TRACED_CELLS = (2, 3)
# The last opset that PyTorch's older exporter writes.
_LAST_TRACED_OPSET = 20


def served_graph(encoder: OnnxEncoder) -> ir.Model:
    """Return the graph of a file as a server runs it, with the operators of the file as they are."""
    model = _load(encoder.file.path)
    graph, config = model.graph, encoder.config
    (output,) = (each for each in graph.outputs if each.name == encoder.output)
    graph.outputs[:] = [output]
    _free_names(model)
    before, after = _Operators("headwaiter_before"), _Operators("headwaiter_after")
    inputs = _replace_inputs(graph, before, encoder)
    _insert_first(graph, before.nodes)
    if config.head is not None:
        outputs = {config.head.output: after.cast(output, ir.DataType.FLOAT)}
    elif not encoder.gives_rows:
        outputs = {"pooled": after.cast(output, ir.DataType.FLOAT)}
    else:
        outputs = {"hidden": output}
        if config.pooling is not Pooling.NONE:
            cells = after.cast(output, ir.DataType.FLOAT)
            outputs["pooled"] = _pool(after, cells, inputs[MASK], encoder)
    graph.extend(after.nodes)
    for operators in (before, after):
        for value in operators.initializers:
            graph.register_initializer(value)
    _name_outputs(graph, outputs, config)
    RemoveUnusedNodesPass()(model)
    return tidy(model)


def _load(path: Path) -> ir.Model:
    """Read a file; its weights may be links that lead out of its folder, as in the cache of Hugging Face."""
    model = ir.load(path)
    for value in chain.from_iterable(part.initializers.values() for part in model.graphs()):
        tensor = value.const_value
        # The reader refuses links that lead out. A location that does is no link, and stays refused.
        if isinstance(tensor, ir.ExternalTensor) and ".." not in (location := Path(tensor.location)).parts:
            file = (path.parent / location).resolve()
            value.const_value = ir.ExternalTensor(
                file.name,
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=tensor.shape,
                name=value.name or "",
                base_dir=file.parent,
            )
    return model


class _Operators:
    """Operators to add to a graph, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []

    def add(self, operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        self.nodes.append(node)
        node.outputs[0].name = f"{self._name}/{len(self.nodes)}"
        return node.outputs[0]

    def constant(self, numbers: Any, dtype: Any = np.int64) -> ir.Value:
        array = np.asarray(numbers, dtype)
        value = ir.val(f"{self._name}/constant_{len(self.initializers)}", const_value=ir.tensor(array))
        self.initializers.append(value)
        return value

    def take(self, graph: ir.Graph) -> None:
        """Take all operators and initializers of a graph."""
        self.initializers += graph.initializers.values()
        graph.initializers.clear()
        nodes = list(graph)
        graph.remove(nodes)
        for node in nodes:
            node.name = f"{self._name}/{node.name}"
        self.nodes += nodes
        for value in (*self.initializers, *(output for node in nodes for output in node.outputs)):
            value.name = f"{self._name}/{value.name}"

    def cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        return value if value.dtype == to else self.add("Cast", value, to=to.value)

    def rows(self, tokens: ir.Value) -> ir.Value:
        """Return the number of tokens N of an array [B, N], a scalar."""
        return self.add("Gather", self.add("Shape", tokens), self.constant(1))


def _free_names(model: ir.Model) -> None:
    """Rename the values of a file that have the names of our inputs and outputs."""
    for number, node in enumerate(model.graph.all_nodes()):
        for value in node.outputs:
            if value.name in _NAMES:
                value.name = f"{value.name}_{number}"
    for number, graph in enumerate(model.graphs()):
        for name in graph.initializers.keys() & _NAMES:
            graph.initializers[name].name = f"{name}_initializer_{number}"


def _replace_inputs(graph: ir.Graph, add: _Operators, encoder: OnnxEncoder) -> dict[str, ir.Value]:
    """Give a graph the inputs of a padded graph, and compute those of the file from them."""
    config = encoder.config
    own = {value.name: value for value in graph.inputs if value.name in encoder.file.inputs}
    sizes = ["batch", "sequence"]
    inputs = {
        name: ir.val(name, ir.DataType.INT64, ir.Shape(sizes))
        for name in (*((IDS,) if config.takes_tokens else ()), MASK, *((TYPES,) if config.token_types else ()))
    }
    if not config.takes_tokens:
        shape = ir.Shape([*sizes, config.feature_width])
        inputs[_FEATURES] = ir.val(_FEATURES, ir.DataType.FLOAT, shape)
    tokens = inputs[MASK]
    for name, value in own.items():
        assert value.dtype is not None
        if name in inputs:
            given = inputs[name]
        elif name == TYPES:
            given = add.add("ConstantOfShape", add.add("Shape", tokens), value=ir.tensor(np.zeros(1, np.int64)))
        elif name == POSITIONS:
            zero, one = (add.constant(number) for number in (0, 1))
            places = add.add("Range", zero, add.rows(tokens), one)
            given = add.add("Expand", places, add.add("Shape", tokens))
        elif encoder.image is not None:
            given = _pixels(add, inputs[_FEATURES], encoder.image)
        else:
            given = inputs[_FEATURES]
        if (given.dtype or ir.DataType.FLOAT) != value.dtype:
            given = add.cast(given, value.dtype)
        value.name = f"{name}_of_file"
        ir.convenience.replace_all_uses_with(value, given)
    graph.inputs[:] = list(inputs.values())
    return inputs


def _pixels(add: _Operators, features: ir.Value, image: ImageFormat) -> ir.Value:
    """Put patches [B, N, channels · size²] together to images [B, channels, height, width]."""
    size = image.patch_size
    high, wide = image.height // size, image.width // size
    start, end, axis = (add.constant([number]) for number in (-high * wide, np.iinfo(np.int64).max, 1))
    patches = add.add("Slice", features, start, end, axis)
    grid = add.add("Reshape", patches, add.constant([-1, high, wide, image.channels, size, size]))
    rows = add.add("Transpose", grid, perm=[0, 3, 1, 4, 2, 5])
    return add.add("Reshape", rows, add.constant([-1, image.channels, high * size, wide * size]))


def _insert_first(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    if nodes:
        graph.insert_before(graph[0], nodes)


class _Pooling(nn.Module):
    """The pooling of an encoder, and the modules after it."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        super().__init__()
        self.config, self.after_pooling = encoder.config, encoder.after_pooling

    def forward(self, cells: Tensor, mask: Tensor) -> Tensor:
        """Pool cells [B, N, width] to [B, pooled_width]."""
        layout = Padded({MASK: mask})
        vectors: Tensor = self.after_pooling(
            pool(cells.flatten(0, 1), layout, [self.config.pooling], self.config.prefix_rows)
        )
        return vectors


def _pool(add: _Operators, cells: ir.Value, mask: ir.Value, encoder: OnnxEncoder) -> ir.Value:
    """Trace the pooling in PyTorch, in the opset of the file, and add its operators."""
    arguments = torch.zeros(*_TRACED_CELLS, encoder.config.pooling_width), torch.ones(*_TRACED_CELLS, dtype=torch.int64)
    names, content = ["cells", "mask"], BytesIO()
    with silence(), torch.inference_mode():
        # Only the older exporter writes old opsets. The operators of a pooling mean the same in later ones.
        torch.onnx.export(
            _Pooling(encoder),
            arguments,
            content,  # type: ignore[arg-type] # the older exporter writes to an open file, too
            input_names=names,
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=min(encoder.file.opset, _LAST_TRACED_OPSET),
            dynamo=False,
        )
    traced = ir.from_proto(onnx.load_from_string(content.getvalue())).graph
    vectors = traced.outputs.pop()
    for own, given in zip(traced.inputs, (cells, mask), strict=True):
        ir.convenience.replace_all_uses_with(own, given)
    add.take(traced)
    return vectors


def _name_outputs(graph: ir.Graph, outputs: dict[str, ir.Value], config: EncoderConfig) -> None:
    """Name the outputs of a graph, and give them the shapes that a server expects."""
    graph.outputs.clear()
    for name, value in outputs.items():
        if value in graph.outputs:
            # One value cannot have two names.
            node = ir.node("Identity", [value])
            graph.append(node)
            value = node.outputs[0]
        value.name = name
        width = config.d_model if name != "pooled" else config.pooled_width
        value.shape = ir.Shape(["batch", *(["sequence"] if name in ("hidden", "token_logits") else []), width])
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(value)
