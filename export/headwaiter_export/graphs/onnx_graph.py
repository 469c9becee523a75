"""Turn an ONNX file of the caller into a padded graph: rename inputs and outputs, and append the pooling it lacks."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from headwaiter_export.config.after_pooling import DenseActivation, ModuleKind, PooledModule
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.graphs.onnx_encoder import OnnxEncoder
from headwaiter_export.graphs.onnx_file import IDS, MASK, POSITIONS, TYPES
from headwaiter_export.graphs.tracing import tidy
from headwaiter_proto.encoder_pb2 import ImageFormat

_FEATURES = "features"
_NAMES = (IDS, MASK, TYPES, _FEATURES, "hidden", "pooled", "logits", "token_logits")
_ACTIVATIONS = {
    DenseActivation.TANH: "Tanh",
    DenseActivation.SIGMOID: "Sigmoid",
    DenseActivation.RELU: "Relu",
}
# From this opset on, ReduceMax takes its axes as an input.
_AXES_AS_INPUT = 18


def served_graph(encoder: OnnxEncoder) -> ir.Model:
    """Return the graph of a file as a server runs it, with the operators of the file as they are.

    Raises:
        ConfigError: a module after the pooling cannot be written.
    """
    model = ir.load(encoder.file.path)
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
            vectors = _pool(after, cells, inputs[MASK], config.pooling, config.prefix_rows, encoder.file.opset)
            outputs["pooled"] = _after_pooling(after, vectors, encoder)
    graph.extend(after.nodes)
    for operators in (before, after):
        for value in operators.initializers:
            graph.register_initializer(value)
    _name_outputs(graph, outputs, config)
    RemoveUnusedNodesPass()(model)
    return tidy(model)


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

    def number(self, value: float) -> ir.Value:
        return self.constant(value, np.float32)

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


def _pool(add: _Operators, cells: ir.Value, mask: ir.Value, pooling: Pooling, prefix_rows: int, opset: int) -> ir.Value:
    """Pool cells [B, N, width] to [B, width]; the operators mean the same in all opsets from 11 on."""
    if pooling is Pooling.CLS:
        return add.add("Gather", cells, add.constant(0), axis=1)
    is_token = add.add("Reshape", add.add("Cast", mask, to=ir.DataType.BOOL.value), add.constant([0, -1, 1]))
    if pooling is Pooling.MAX:
        infinity = add.number(-np.inf)
        most = add.add("Where", is_token, cells, infinity)
        if opset >= _AXES_AS_INPUT:
            return add.add("ReduceMax", most, add.constant([1]), keepdims=0)
        return add.add("ReduceMax", most, axes=[1], keepdims=0)
    ones = add.add("Cast", mask, to=ir.DataType.FLOAT.value)
    row = add.add("Reshape", ones, add.constant([0, 1, -1]))
    # A sum over tokens that is exact in float32.
    count = add.add("MatMul", row, add.add("Reshape", ones, add.constant([0, -1, 1])))
    weights, divisor = row, count
    if pooling is not Pooling.MEAN and pooling is not Pooling.MEAN_SQRT_LEN:
        one = add.constant(1)
        past = add.add("Add", add.rows(mask), one)
        places = add.add("Cast", add.add("Range", one, past, one), to=ir.DataType.FLOAT.value)
    if pooling is Pooling.LAST:
        weights = add.add("Cast", add.add("Equal", places, count), to=ir.DataType.FLOAT.value)
        divisor = add.number(1)
    elif pooling is Pooling.MEAN_SQRT_LEN:
        divisor = add.add("Sqrt", count)
    elif pooling is Pooling.WEIGHTED_MEAN:
        weights = add.add("Mul", row, places)
        divisor = add.add("Mul", add.add("Mul", count, add.add("Add", count, add.number(1))), add.number(0.5))
    elif pooling in (Pooling.PREFIX_MEAN, Pooling.PATCH_MEAN):
        is_patch = add.add("Greater", places, add.number(prefix_rows))
        chosen = is_patch if pooling is Pooling.PATCH_MEAN else add.add("Not", is_patch)
        weights = add.add("Mul", row, add.add("Cast", chosen, to=ir.DataType.FLOAT.value))
        divisor = add.number(prefix_rows)
        if pooling is Pooling.PATCH_MEAN:
            divisor = add.add("Sub", count, divisor)
    # A cell of padding may hold infinity, and 0 × infinity is NaN.
    kept = add.add("Where", is_token, cells, add.number(0))
    total = add.add("Div", add.add("MatMul", weights, kept), divisor)
    return add.add("Reshape", total, add.constant([0, -1]))


def _after_pooling(add: _Operators, vectors: ir.Value, encoder: OnnxEncoder) -> ir.Value:
    """Append the modules after the pooling."""
    for module, layer in zip(encoder.config.after_pooling, encoder.after_pooling, strict=True):
        tensors = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
        vectors = _module(add, vectors, module, tensors)
    return vectors


def _module(add: _Operators, x: ir.Value, module: PooledModule, tensors: dict[str, NDArray[Any]]) -> ir.Value:
    if module.kind is ModuleKind.TRUNCATE:
        start, stop, axis = (add.constant([number]) for number in (0, module.width, 1))
        return add.add("Slice", x, start, stop, axis)
    if module.kind is ModuleKind.NORMALIZE:
        row, column = (add.add("Reshape", x, add.constant(shape)) for shape in ([0, 1, -1], [0, -1, 1]))
        length = add.add("Sqrt", add.add("Reshape", add.add("MatMul", row, column), add.constant([-1, 1])))
        return add.add("Div", x, add.add("Max", length, add.number(1e-12)))
    if module.kind is not ModuleKind.DENSE or module.activation not in (DenseActivation.IDENTITY, *_ACTIVATIONS):
        name = module.kind if module.kind is not ModuleKind.DENSE else f"{module.kind} with {module.activation}"
        raise ConfigError(
            f"the pooling is followed by {name}, which the export cannot append to an ONNX file: export the checkpoint "
            "itself with headwaiter-export checkpoint"
        )
    inputs = [add.constant(tensors[f"linear.{each}"], np.float32) for each in ("weight", "bias")[: 1 + module.bias]]
    x = add.add("Gemm", x, *inputs, transB=1)
    return add.add(_ACTIVATIONS[module.activation], x) if module.activation in _ACTIVATIONS else x


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
