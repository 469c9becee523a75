"""What Attend asks for, checked before anything is computed."""

import math
from collections.abc import Sequence

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import InvalidInput, Unimplemented
from headwaiter_server.runtime.attention_weights import AttentionSelection

_WEIGHT_BYTES = 4


def check_offered(manifest: Manifest) -> None:
    """Refuse where the bundle lacks the graph.

    Raises:
        Unimplemented: saying how to get it.
    """
    if not manifest.HasField("attend"):
        raise Unimplemented(
            f"the bundle of {manifest.name} has no graph of attention weights: export the model again, and read what "
            "the export says of it"
        )


def check_single(request: pb.AttendRequest) -> None:
    """Refuse a request of several sequences; one of none is refused where sequences are read.

    Raises:
        InvalidInput: naming the field.
    """
    counts = {
        "tokens.lengths": len(request.tokens.lengths),
        "features.lengths": len(request.features.lengths),
        "texts.values": len(request.texts.values),
    }
    for field, count in counts.items():
        if count > 1:
            raise InvalidInput(
                f"{field}: the request has {count} sequences, and Attend takes exactly one: send a request for each",
                field=field,
                limit=1,
                actual=count,
            )


def select(request: pb.AttendRequest, tokens: int, manifest: Manifest, limit_bytes: int) -> AttentionSelection:
    """Return what to show of a sequence of so many tokens.

    Raises:
        InvalidInput: what is asked for is not there, or takes more bytes than the limit.
    """
    layers = _chosen("layers", request.layers, manifest.layers)
    heads = _chosen("heads", request.heads, manifest.heads)
    if request.HasField("query") and request.query >= tokens:
        raise InvalidInput(
            f"query is {request.query}, and the sequence's positions are 0 to {tokens - 1}",
            field="query",
            limit=tokens - 1,
            actual=request.query,
        )
    _check_size(len(layers), tokens, manifest, limit_bytes)
    return AttentionSelection(layers, heads, request.query if request.HasField("query") else None)


def _chosen(field: str, asked: Sequence[int], count: int) -> Sequence[int]:
    # First: a message has room for millions.
    if len(asked) > count:
        raise InvalidInput(
            f"{field} has {len(asked)} numbers, and the model has {count} {field}: name each once",
            field=field,
            limit=count,
            actual=len(asked),
        )
    for index in asked:
        if index >= count:
            raise InvalidInput(
                f"{field} has {index}, and the model's {field} are 0 to {count - 1}",
                field=field,
                limit=count - 1,
                actual=index,
            )
    if len(set(asked)) < len(asked):
        raise InvalidInput(f"{field} names one of them twice: name each once", field=field)
    return list(asked) or range(count)


def _check_size(layers: int, tokens: int, manifest: Manifest, limit_bytes: int) -> None:
    """Refuse what would take too much memory: the graph computes all heads of a layer, whichever are asked for."""
    layer_bytes = manifest.heads * tokens**2 * _WEIGHT_BYTES
    if layers * layer_bytes <= limit_bytes:
        return
    most_tokens = math.isqrt(limit_bytes // (manifest.heads * _WEIGHT_BYTES))
    instead = (
        f"ask for at most {limit_bytes // layer_bytes} of the layers in one request"
        if layer_bytes <= limit_bytes
        else f"no sequence of more than {most_tokens} tokens can be looked at"
    )
    raise InvalidInput(
        f"layers: the weights of {layers} layers, {manifest.heads} heads and {tokens} × {tokens} tokens take "
        f"{layers * layer_bytes} bytes, and the server computes {limit_bytes} at most: {instead}",
        field="layers",
        limit=limit_bytes,
        actual=layers * layer_bytes,
    )
