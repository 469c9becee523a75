"""What attention looked at: requests out, results in, without any I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client import _core
from headwaiter_client.errors import HeadwaiterError, InvalidInput
from headwaiter_proto import encoder_pb2 as pb

_MOST = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Attention:
    """What the heads of one sequence of n tokens looked at; the arrays are read-only views of the reply.

    Attributes:
        weights: [layers, heads, n, n], where each row is a query's and sums to one.
        context: [layers, heads, value_dim], what each head made of the values for the chosen query, before any output
            projection; None when no query was chosen.
        tokens: the n tokens of a text, as the tokenizer's vocabulary spells them; None for token ids and features.
        timings: where the time went.
        model: which weights answered.
        request_id: what the server's log calls the request.
    """

    weights: NDArray[Any]
    context: NDArray[Any] | None
    tokens: list[str] | None
    timings: _core.Timings
    model: _core.ModelRef
    request_id: str


def attend_request(
    sequence: str | ArrayLike,
    *,
    layers: Iterable[SupportsIndex] | None = None,
    heads: Iterable[SupportsIndex] | None = None,
    query: SupportsIndex | None = None,
    model: str = "",
    request_id: str = "",
) -> pb.AttendRequest:
    """Builds a request; its arguments are those of `Client.attend`.

    Raises:
        InvalidInput: the sequence is no text, ids or features, or an index cannot be one.
    """
    encode = _input(sequence, {"model": model, "request_id": request_id})
    request = pb.AttendRequest(
        model=encode.model,
        request_id=encode.request_id,
        layers=_chosen("layers", layers),
        heads=_chosen("heads", heads),
    )
    kind = encode.WhichOneof("input")
    assert kind is not None
    getattr(request, kind).CopyFrom(getattr(encode, kind))
    if query is not None:
        request.query = _index("query", query)
    return request


def attention(response: pb.AttendResponse, round_trip_s: float) -> Attention:
    """Reads a reply.

    Raises:
        HeadwaiterError: the reply does not hold what it says.
    """
    try:
        weights = _core.array(response.weights)
        context = _core.array(response.context) if response.HasField("context") else None
    except (KeyError, ValueError) as error:
        raise HeadwaiterError(f"the reply cannot be read: {error}", request_id=response.request_id) from error
    return Attention(
        weights=weights,
        context=context,
        tokens=list(response.tokens) or None,
        timings=_core.timings(response.timings, round_trip_s),
        model=_core.model_ref(response.model),
        request_id=response.request_id,
    )


def _input(sequence: str | ArrayLike, names: _core.RequestOptions) -> pb.EncodeRequest:
    """Lets the builders of Encode's requests look at the sequence and the names."""
    if isinstance(sequence, str):
        return _core.texts_request([sequence], **names)
    try:
        rows = np.ndim(sequence) == 2
    except (ValueError, TypeError, RuntimeError):  # No array: for the builder of requests to say.
        rows = False
    build = _core.features_request if rows else _core.tokens_request
    return build([sequence], **names)


def _chosen(field: str, indices: Iterable[SupportsIndex] | None) -> list[int]:
    if indices is None:
        return []
    try:
        chosen = [_index(field, one) for one in indices]
    except TypeError as error:
        raise InvalidInput(f"{field} is {indices!r}; pass a list, such as [0]", field=field) from error
    if not chosen:
        raise InvalidInput(f"{field} is empty; leave it out for all of them", field=field)
    return chosen


def _index(field: str, value: SupportsIndex) -> int:
    try:
        number = index(value)
    except TypeError as error:
        raise InvalidInput(f"{field} has {value!r}; it takes whole numbers from 0", field=field) from error
    if not 0 <= number <= _MOST:
        raise InvalidInput(f"{field} has {number}; it takes whole numbers from 0", field=field)
    return number
