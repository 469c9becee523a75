"""Trace one layer of each kind, and copy its operators for all layers of that kind.

An encoder is a stack of layers, and a decoder another one; each stack has its own kinds.

PyTorch needs about 0.2 CPU-seconds to trace a layer into each graph. The layers of an encoder are alike: they have the
same modules, and differ only in their weights. `mark_layers` makes an encoder with one layer of each kind, whose inputs
and outputs are marked by placeholders. In its graph, `repeat_layers` replaces the marked operators by copies, one for
each layer of the whole encoder.
"""

import copy
from collections.abc import Iterable

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor, nn

from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.encoder import Encoder

_DOMAIN = "headwaiter.layers"
_BEGIN, _END = "BeginLayer", "EndLayer"


def mark_layers(encoder: Encoder) -> Encoder:
    """Return an encoder with the first layer of each kind, between placeholders, and with weights of any value.

    PyTorch's tracer keeps the weights of the last traced module in memory, so it must not see those of the encoder.
    Memory that nobody writes to takes no room.
    """
    stacks = _stacks(encoder)
    memo: dict[int, object] = {id(tensor): _without_values(tensor) for _, tensor in _tensors(encoder)}
    marked = copy.deepcopy(encoder, {**memo, **{id(layers): nn.ModuleList() for layers in stacks.values()}})
    for name, layers in stacks.items():
        first = nn.ModuleList(map(_MarkedLayer, _first_of_each_kind(layers).values()))
        marked.set_submodule(name, copy.deepcopy(first, memo))
    return marked


def _stacks(encoder: Encoder) -> dict[str, nn.ModuleList]:
    """Return the layers of the encoder and of its decoder, by their names in the encoder."""
    stacks = {"layers": encoder.layers}
    return stacks if encoder.decoder is None else {**stacks, "decoder.layers": encoder.decoder.layers}


def _without_values(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def repeat_layers(model: ir.Model, encoder: Encoder) -> None:
    """Replace the marked operators in the graph of `mark_layers(encoder)` by copies for each layer of the encoder.

    The graph gets the encoder's weights. An output that a layer computes becomes one output for each layer.
    """
    graph = model.graph
    begins = iter([node for node in graph if node.op_type == _BEGIN])
    for name, layers in _stacks(encoder).items():
        _repeat_stack(graph, name, layers, [_TracedLayer(next(begins)) for _ in _first_of_each_kind(layers)])
    del graph.opset_imports[_DOMAIN]
    for name, tensor in _tensors(encoder):
        if f"encoder.{name}" in graph.initializers:
            graph.initializers[f"encoder.{name}"].const_value = TorchTensor(tensor.detach(), f"encoder.{name}")


def _repeat_stack(graph: ir.Graph, stack: str, layers: nn.ModuleList, kinds: list["_TracedLayer"]) -> None:
    """Replace the marked operators of one stack by copies for each layer."""
    of_kind = dict(zip(_first_of_each_kind(layers), kinds, strict=True))
    for number, (layer, kind) in enumerate(zip(_first_of_each_kind(layers).values(), kinds, strict=True)):
        # Other initializers are constants of the code, such as a zero point.
        names = {f"encoder.{stack}.{number}.layer.{name}": name for name, _ in _tensors(layer)}
        kind.weights = {value: names[name] for name, value in graph.initializers.items() if name in names}
        kind.find_operators(graph)
    if not kinds:
        return
    rows, outputs = kinds[0].begin.inputs[0], list[ir.Value]()
    last_end = kinds[-1].end
    # Operators of layer 3 are named layer_3/…, and those of a decoder decoder_layer_3/….
    prefix = stack.replace(".", "_").removesuffix("s")
    for number, layer in enumerate(layers):
        assert rows is not None
        kind = of_kind[_kind(layer)]
        copies = {kind.begin.outputs[0]: rows, **_weights(layer, kind.weights, f"{stack}.{number}", graph)}
        for node in kind.operators:
            graph.insert_before(last_end, _copy(node, copies, f"{prefix}_{number}"))
        outputs += [copies[output] for output in graph.outputs if output in copies]
        rows = copies[kind.end.inputs[0]] if kind.end.inputs[0] in copies else kind.end.inputs[0]
    assert rows is not None
    last_end.outputs[0].replace_all_uses_with(rows, replace_graph_outputs=True)
    traced = {output for kind in kinds for node in kind.operators for output in node.outputs}
    places = [place for place, output in enumerate(graph.outputs) if output in traced]
    if places:
        # The outputs of a stack are adjacent, because its layers are traced one after another.
        graph.outputs[places[0] : places[-1] + 1] = outputs
    graph.remove([node for kind in kinds for node in (kind.begin, *kind.operators, kind.end)], safe=True)
    for value in {value for kind in kinds for value in kind.weights}:
        assert value.name is not None
        del graph.initializers[value.name]


class _MarkedLayer(nn.Module):
    """A layer between placeholders."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, layout: AttentionLayout, *source: Tensor) -> Tensor:
        return _placeholder(_END, self.layer(_placeholder(_BEGIN, x), layout, *source))


class _TracedLayer:
    """The operators of one marked layer in a graph.

    Attributes:
        begin, end: the placeholders.
        weights: the names of the layer's weights in the layer, by their values in the graph.
        operators: the operators whose results depend on the layer's input or weights, in the order of the graph.
    """

    def __init__(self, begin: ir.Node) -> None:
        self.begin = begin
        self.end = begin
        self.weights: dict[ir.Value, str] = {}
        self.operators: list[ir.Node] = []

    def find_operators(self, graph: ir.Graph) -> None:
        values = {*self.begin.outputs, *self.weights}
        for node in graph:
            if node is self.begin or values.isdisjoint(node.inputs):
                continue
            if node.op_type == _END:
                self.end = node
            else:
                self.operators.append(node)
                values.update(node.outputs)


def _placeholder(name: str, x: Tensor) -> Tensor:
    return torch.onnx.ops.symbolic(f"{_DOMAIN}::{name}", (x,), dtype=x.dtype, shape=x.shape, version=1)


def _first_of_each_kind(layers: nn.ModuleList) -> dict[object, nn.Module]:
    kinds: dict[object, nn.Module] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer), layer)
    return kinds


def _kind(layer: nn.Module) -> object:
    """Return what the operators of a layer depend on, without the values of its weights."""
    modules = tuple((name, type(module), getattr(module, "window", None)) for name, module in layer.named_modules())
    return modules, tuple((name, tensor.shape, tensor.dtype) for name, tensor in _tensors(layer))


def _tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _weights(layer: nn.Module, names: dict[ir.Value, str], place: str, graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """Add the weights of a layer to the graph, and return them by the traced weights that they replace."""
    tensors, weights = dict(_tensors(layer)), {}
    for traced, name in names.items():
        full_name = f"encoder.{place}.{name}"
        tensor = TorchTensor(tensors[name].detach(), full_name)
        weights[traced] = ir.Value(name=full_name, shape=traced.shape, type=traced.type, const_value=tensor)
        graph.register_initializer(weights[traced])
    return weights


def _copy(node: ir.Node, copies: dict[ir.Value, ir.Value], place: str) -> ir.Node:
    """Return a copy of an operator that reads the copies of its inputs, and add its outputs to `copies`."""
    outputs = [ir.Value(name=f"{place}/{each.name}", shape=each.shape, type=each.type) for each in node.outputs]
    copies.update(zip(node.outputs, outputs, strict=True))
    inputs = [None if each is None else copies.get(each, each) for each in node.inputs]
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        overload=node.overload,
        outputs=outputs,
        version=node.version,
    )
