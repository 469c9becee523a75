"""Check the parts of an Attend request that other requests do not have."""

import math
from collections.abc import Sequence

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput, Unimplemented

_WEIGHT_BYTES = 4


def check_supported(manifest: Manifest) -> None:
    """Check that the model's bundle has a graph of attention weights.

    Raises:
        Unimplemented: the bundle lacks this graph.
    """
    if not manifest.HasField("attend"):
        raise Unimplemented(
            f"the bundle of {manifest.name} has no graph of attention weights: export the model again, without "
            "--graphs or with attend among them; if the graph is still missing, the output of the export says why"
        )


def check_single(request: pb.AttendRequest) -> None:
    """Check that a request has at most one sequence; a request without sequences is refused later.

    Raises:
        InvalidInput: the request has several sequences.
    """
    counts = {
        "tokens.lengths": len(request.tokens.lengths),
        "features.lengths": len(request.features.lengths),
        "texts.values": len(request.texts.values),
        "pairs.second": len(request.pairs.second),
        "images.values": len(request.images.values),
    }
    for field, count in counts.items():
        if count > 1:
            raise InvalidInput(
                f"{field}: the request has {count} sequences; Attend accepts only 1: send one request for each",
                field=field,
                limit=1,
                actual=count,
            )


def select(
    request: pb.AttendRequest, tokens: int, manifest: Manifest, limit_bytes: int
) -> tuple[Sequence[int], Sequence[int], int | None, bool]:
    """Return layers, heads, query and `vectors` of a request whose sequence has `tokens` tokens.

    Raises:
        InvalidInput: a layer, a head or the query does not exist, the weights are too large, or the request asks for
            the vectors of several heads, or of none.
    """
    layers = _read_indices("layers", request.layers, manifest.layers)
    heads = _read_indices("heads", request.heads, manifest.heads)
    if request.HasField("query") and request.query >= tokens:
        raise InvalidInput(
            f"query is {request.query}; the positions of the sequence are 0 to {tokens - 1}: choose one of them",
            field="query",
            limit=tokens - 1,
            actual=request.query,
        )
    if request.vectors and (len(layers), len(heads), request.HasField("query")) != (1, 1, True):
        raise InvalidInput(
            f"vectors are those of one query in one head; the request has {len(layers)} layers, {len(heads)} heads and "
            f"{'a' if request.HasField('query') else 'no'} query: name one layer, one head and a query",
            field="vectors",
        )
    _check_size(len(layers), tokens, manifest, limit_bytes)
    return layers, heads, request.query if request.HasField("query") else None, request.vectors


def _read_indices(field: str, indices: Sequence[int], count: int) -> Sequence[int]:
    """Return the requested indices of layers or heads, or all indices if the request names no index."""
    # This check comes first because a message may hold millions of indices.
    if len(indices) > count:
        raise InvalidInput(
            f"{field} has {len(indices)} numbers; the model has {count} {field}: name each of them at most once",
            field=field,
            limit=count,
            actual=len(indices),
        )
    for index in indices:
        if index >= count:
            raise InvalidInput(
                f"{field} contains the index {index}; valid indices are 0 to {count - 1}: choose among them",
                field=field,
                limit=count - 1,
                actual=index,
            )
    if len(set(indices)) < len(indices):
        raise InvalidInput(f"{field} {list(indices)} name an index twice: name each index at most once", field=field)
    return list(indices) or range(count)


def _check_size(layers: int, tokens: int, manifest: Manifest, limit_bytes: int) -> None:
    """Check the size of the computed weights, which include the heads that are not requested."""
    layer_bytes = manifest.heads * tokens**2 * _WEIGHT_BYTES
    if layers * layer_bytes <= limit_bytes:
        return
    if layer_bytes <= limit_bytes:
        advice = f"ask for at most {limit_bytes // layer_bytes} of the layers in one request"
    else:
        most_tokens = math.isqrt(limit_bytes // (manifest.heads * _WEIGHT_BYTES))
        advice = f"send a sequence of at most {most_tokens} tokens"
    raise InvalidInput(
        f"layers: the weights of {layers} layers, {manifest.heads} heads and {tokens} × {tokens} tokens take "
        f"{layers * layer_bytes} bytes; the server computes at most {limit_bytes} bytes: {advice}",
        field="layers",
        limit=limit_bytes,
        actual=layers * layer_bytes,
    )
