"""Check an ONNX file against the manifest before ONNX Runtime opens the file.

A checksum says only that a file is the one that the manifest lists. These checks compare what the file contains: its
weights are in its own weights file and inside it, and its inputs, tables and outputs have the sizes of the manifest.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from google.protobuf.message import DecodeError, Message

from headwaiter_proto.encoder_pb2 import POOLING_ATTENTION, POOLING_NONE
from headwaiter_proto.manifest_pb2 import LOWERING_ATTEND, Graph, Manifest
from headwaiter_proto.onnx_graph_pb2 import Model, Node, Tensor, Value
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_proto.rules.target import takes_target
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.packing import INPUT_NAMES, TARGET

# Graphs of the largest models have about 2 MiB, because their weights are in another file.
MAX_GRAPH_BYTES = 8 << 20
_EXTERNAL = 1
# The smallest numbers of ONNX have 4 bits.
_MOST_VALUES_PER_BYTE = 2
_MOST_DIMENSIONS = 16
# Each attention layer has one of these nodes: the loop over the query blocks of a CPU graph, attention on CUDA,
# or the softmax of the other graphs. The last one is in graphs of the oldest exports.
_ATTENTION_OPERATORS = {"Scan", "PackedMultiHeadAttention", "Softmax", "MultiHeadAttention"}
_ROW_INPUTS = {"input_ids", "token_type_ids", "features", f"{TARGET}input_ids", f"{TARGET}features"}


def check_graph_file(content: bytes, listed: Graph, manifest: Manifest, weights_bytes: int) -> None:
    """Check the content of a graph's file.

    Args:
        content: the file.
        listed: the graph in the manifest.
        manifest: the manifest.
        weights_bytes: size of the graph's weights file.

    Raises:
        BundleRefused: the message begins with what is wrong in the file, and does not name the file.
    """
    model = Model()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise BundleRefused("is no ONNX graph") from None
    tensors = list(_check_parts(model))
    for tensor in tensors:
        _check_tensor(tensor, listed.weights_file, weights_bytes, len(content))
    inputs = {value.name: _dims(value) for value in model.graph.inputs}
    outputs = {value.name: _dims(value) for value in model.graph.outputs}
    _check_inputs(inputs, manifest)
    if listed.lowering == LOWERING_ATTEND:
        _check_attention_outputs(outputs, manifest)
    else:
        _check_outputs(outputs, manifest)
        _check_attention(model.graph.nodes, manifest)
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializers if tensor.dims}
    for node in model.graph.nodes:
        _check_table(node, rows, manifest)


def _check_parts(message: Message) -> Iterator[Tensor]:
    """Yield all tensors of a message; refuse the parts that no graph of a bundle has."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_BYTES:
            raise BundleRefused(f"has {field.name}, which no graph of a bundle has")
        if field.message_type is not None:
            for part in (value,) if isinstance(value, Message) else value:
                if isinstance(part, Tensor):
                    yield part
                else:
                    yield from _check_parts(part)


def _check_tensor(tensor: Tensor, weights_file: str, weights_bytes: int, graph_bytes: int) -> None:
    """Check that a tensor's values are in the graph or in its weights file, and fit there."""
    name = tensor.name[:100]
    if len(tensor.dims) > _MOST_DIMENSIONS or min(tensor.dims, default=0) < 0:
        raise BundleRefused(f"has the tensor {name!r} of the shape {list(tensor.dims)[:8]}")
    size_bytes = graph_bytes
    if tensor.data_location == _EXTERNAL or tensor.external_data:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if location != weights_file or tensor.data_location != _EXTERNAL:
            raise BundleRefused(
                f"keeps the tensor {name!r} in {location[:100]!r}, and weights_file of the manifest is {weights_file!r}"
            )
        offset, size_bytes = (_whole_number(entries.get(key, "")) for key in ("offset", "length"))
        if offset < 0 or size_bytes < 0 or offset + size_bytes > weights_bytes:
            raise BundleRefused(f"reads the tensor {name!r} outside {weights_file}, which has {weights_bytes:,} bytes")
    if prod(tensor.dims) > _MOST_VALUES_PER_BYTE * size_bytes:
        raise BundleRefused(f"has the tensor {name!r} of the shape {list(tensor.dims)[:8]} in {size_bytes:,} bytes")


def _whole_number(text: str) -> int:
    """Return the number that a text of at most 18 digits stands for, or -1."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1


def _dims(value: Value) -> list[int]:
    return [dimension.value for dimension in value.type.tensor.shape.dims]


def _check_inputs(inputs: Mapping[str, list[int]], manifest: Manifest) -> None:
    if unknown := sorted(inputs.keys() - INPUT_NAMES):
        raise BundleRefused(f"has the input {unknown[0][:100]!r}, which this server does not know")
    wanted = {"input_ids"} if manifest.vocabulary_size else {"features"}
    wanted |= {"token_type_ids"} if manifest.token_types else set()
    wanted |= {TARGET + name for name in wanted} if takes_target(manifest) else set()
    if (found := inputs.keys() & _ROW_INPUTS) != wanted:
        fields = "vocabulary_size, feature_width, token_types and target of the manifest"
        raise BundleRefused(f"has the inputs {sorted(found)}, and by {fields} it has {sorted(wanted)}")
    for name in inputs.keys() & {"features", f"{TARGET}features"}:
        # The last value of a row says which part it belongs to, and is no input of the graph.
        _check_last(name, inputs[name], manifest.feature_width - takes_target(manifest), "feature_width")


def _check_outputs(outputs: Mapping[str, list[int]], manifest: Manifest) -> None:
    wanted = {"hidden": (hidden_width(manifest), "hidden_width" if manifest.hidden_width else "width")}
    if manifest.pooling != POOLING_NONE:
        wanted["pooled"] = manifest.width, "width"
    if manifest.HasField("head"):
        wanted["token_logits" if manifest.head.per_token else "logits"] = len(manifest.head.labels), "head.labels"
    if outputs.keys() != wanted.keys():
        raise BundleRefused(
            f"has the outputs {sorted(outputs)[:8]}, and by pooling and head of the manifest it has {sorted(wanted)}"
        )
    for name, (size, field) in wanted.items():
        _check_last(name, outputs[name], size, field)


def _check_attention_outputs(outputs: Mapping[str, list[int]], manifest: Manifest) -> None:
    # Not all names are made first: the manifest may claim billions of layers.
    if len(outputs) != 2 * manifest.layers:
        raise BundleRefused(f"has {len(outputs)} outputs, and the manifest has {manifest.layers} layers of two each")
    for layer in range(manifest.layers):
        weights, context = outputs.get(f"weights_{layer}"), outputs.get(f"context_{layer}")
        if weights is None or context is None:
            raise BundleRefused(f"lacks an output of layer {layer}")
        for dims in (weights, context):
            if len(dims) != 3 or dims[0] != manifest.heads:
                raise BundleRefused(f"has {dims[:1]} heads in layer {layer}, and the manifest has {manifest.heads}")


def _check_attention(nodes: Iterable[Node], manifest: Manifest) -> None:
    """Check the numbers of layers and heads, as far as the graph shows them: no softmax has a number of heads."""
    layers = [node for node in nodes if node.operator in _ATTENTION_OPERATORS]
    expected = manifest.layers + manifest.first_row_layers + (manifest.pooling == POOLING_ATTENTION)
    if len(layers) != expected:
        raise BundleRefused(f"has {len(layers)} attention layers, and the manifest has {expected}")
    for node in layers:
        heads = [each.number for each in node.attributes if each.name == "num_heads"]
        # The loop over query blocks gives the context [batch, block, heads, value_dim].
        contexts = [_dims(output) for each in node.attributes for output in each.graph.outputs]
        heads += [context[2] for context in contexts if len(context) == 4]
        if any(number != manifest.heads for number in heads):
            raise BundleRefused(f"has {heads[0]} heads in a layer, and the manifest has {manifest.heads}")


def _check_last(name: str, dims: list[int], size: int, field: str) -> None:
    if not dims or dims[-1] != size:
        raise BundleRefused(f"has {name} of the shape {dims[:8]}, and {field} of the manifest is {size}")


def _check_table(node: Node, rows: Mapping[str, int], manifest: Manifest) -> None:
    """Check that a table has a row for each number that the manifest allows in an input.

    On CUDA, a row behind the last one reads as zeros, so running the graph could not tell.
    """
    if node.operator != "Gather" or len(node.inputs) != 2:
        return
    table, index = node.inputs[0], node.inputs[1].removeprefix(TARGET)
    sizes = {
        "input_ids": (manifest.vocabulary_size, "vocabulary_size"),
        "token_type_ids": (manifest.token_types, "token_types"),
        "positions": (manifest.max_tokens, "max_tokens"),
    }
    if index in sizes and table in rows and rows[table] < sizes[index][0]:
        size, field = sizes[index]
        raise BundleRefused(
            f"has {rows[table]:,} rows in the table of {index}, and {field} of the manifest is {size:,}"
        )
