"""Compare a graph with the manifest: its inputs, its outputs and its tables."""

import hashlib
from collections.abc import Iterator
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from headwaiter_proto.encoder_pb2 import POOLING_NONE
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_proto.rules.target import takes_target
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import TARGET

_ROW_INPUTS = ("input_ids", "token_type_ids", "features")
# The numbers of fields in ONNX's messages.
_GRAPH = 7
_NODES, _INITIALIZERS = 1, 5
_INPUTS, _OUTPUTS, _OPERATOR, _ATTRIBUTES = 1, 2, 4, 5
_INTEGER = 3
_DIMENSIONS, _NAME = 1, 8


def check_graph(graph: EncoderGraph, content: bytes, manifest: Manifest) -> None:
    """Check that a graph has the inputs, outputs and tables that the manifest describes.

    Args:
        graph: the loaded graph.
        content: the content of its file.
        manifest: the manifest.

    Raises:
        BundleRefused: the message begins with what is wrong in the file, and does not name the file.
    """
    wanted = {"input_ids": 0} if manifest.vocabulary_size else {}
    wanted |= {"token_type_ids": 0} if manifest.token_types else {}
    # The last value of a row says which part it belongs to, and is no input of the graph.
    wanted |= {"features": manifest.feature_width - takes_target(manifest)} if manifest.feature_width else {}
    wanted |= {TARGET + name: width for name, width in wanted.items()} if takes_target(manifest) else {}
    inputs, outputs = graph.widths()
    inputs = {name: width for name, width in inputs.items() if name.removeprefix(TARGET) in _ROW_INPUTS}
    _compare("inputs", inputs, wanted, "vocabulary_size, feature_width, token_types and target")
    wanted = {} if manifest.without_rows else {"hidden": hidden_width(manifest)}
    wanted |= {"pooled": manifest.width} if manifest.pooling != POOLING_NONE else {}
    if manifest.HasField("head"):
        wanted["token_logits" if manifest.head.per_token else "logits"] = len(manifest.head.labels)
    _compare("outputs", outputs, wanted, "pooling, width, hidden_width and head")
    # On CUDA, a row behind the last one reads as zeros, so running the graph could not tell.
    sizes = {"input_ids": "vocabulary_size", "token_type_ids": "token_types", "positions": "max_tokens"}
    for name, rows in _tables(content):
        if (field := sizes.get(name.removeprefix(TARGET))) and rows < getattr(manifest, field):
            raise BundleRefused(
                f"has {rows:,} rows in the table of {name}, and {field} of the manifest is {getattr(manifest, field):,}"
            )


def structure_of(content: bytes) -> str:
    """Return a digest of what decides how long a graph runs: its nodes, and the names and shapes of its weights.

    The file of a graph also has the values of small weights, which differ from one version of a model to the next.
    """
    (graph,) = _field(content, _GRAPH)
    weights = [(_field(each, _NAME), _field(each, _DIMENSIONS)) for each in _field(graph, _INITIALIZERS)]
    return hashlib.sha256(repr((_field(graph, _NODES), weights)).encode()).hexdigest()


def _compare(what: str, found: dict[str, int], wanted: dict[str, int], fields: str) -> None:
    if found != wanted:
        raise BundleRefused(f"has the {what} {_listed(found)}, and by {fields} of the manifest {_listed(wanted)}")


def _listed(widths: dict[str, int]) -> str:
    return ", ".join(f"{name} of width {width}" if width else name for name, width in sorted(widths.items())) or "none"


def _tables(content: bytes) -> Iterator[tuple[str, int]]:
    """Yield the name of each value that chooses rows of a table of weights, and the number of rows."""
    (graph,) = _field(content, _GRAPH)
    weights = {_field(each, _NAME)[0]: _field(each, _DIMENSIONS) for each in _field(graph, _INITIALIZERS)}
    reshaped: dict[bytes, bytes] = {}
    for node in _field(graph, _NODES):
        (operator,), inputs = _field(node, _OPERATOR), [reshaped.get(name, name) for name in _field(node, _INPUTS)]
        if operator in (b"Reshape", b"Unsqueeze"):
            reshaped[_field(node, _OUTPUTS)[0]] = inputs[0]
        if operator == b"Gather" and (dimensions := weights.get(inputs[0])):
            # The only attribute; a negative axis counts from the end, and is read without its sign.
            axis = sum(integer for each in _field(node, _ATTRIBUTES) for integer in _field(each, _INTEGER))
            yield inputs[1].decode(), dimensions[axis - (axis >> 63 << 64)]
        if operator == b"RotaryEmbedding" and (dimensions := weights.get(inputs[2])):
            yield inputs[1].decode(), dimensions[0]


def _field(message: bytes, number: int) -> list[Any]:
    """Return the values of a field of a protobuf message, for which this package has no class."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return [fields[index].data for index in range(len(fields)) if fields[index].field_number == number]
