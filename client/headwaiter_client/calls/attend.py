"""Attention weights of one sequence: build the request and read the reply, without I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, SupportsIndex, Unpack

from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.arguments import check_type
from headwaiter_client.calls.input_kinds import input_kind_of, whole_number
from headwaiter_client.calls.models import ModelRef, model_ref
from headwaiter_client.calls.options import AttendOptions, checked_text, own_id, random_id
from headwaiter_client.calls.results import Timings, present, read_timings, reading_reply
from headwaiter_client.calls.tensors import check_shape, float_array
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class AttentionVectors:
    """What the weights and the context vector of one query in one head are computed from, for n tokens.

    Attributes:
        query_vector: float32 [head_dim], q. The weights of the query are the softmax of k · q / √head_dim over all keys
            k, plus what the model adds for distances and masks.
        keys: float32 [n, head_dim], each k.
        values: float32 [n, value_dim]; their sum, weighted by the weights, is the context vector.
    """

    query_vector: NDArray[Any]
    keys: NDArray[Any]
    values: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of one sequence of n tokens. Its arrays are writable.

    Attributes:
        weights: float32 [layers, heads, n, n]; each row holds the weights of one query, with the sum 1.
        received_context: what `context` reads; None if no query was chosen.
        received_tokens: what `tokens` reads; None for token ids, features and images.
        received_vectors: what `vectors` reads; None if the call did not ask for them, or the model has none.
        timings: the time that each stage took.
        model: the model that answered.
        request_id: the request's name in the server's log.
    """

    weights: NDArray[Any] = field(repr=False)
    received_context: NDArray[Any] | None = field(repr=False)
    received_tokens: list[str] | None
    received_vectors: AttentionVectors | None = field(repr=False)
    timings: Timings
    model: ModelRef
    request_id: str

    @property
    def context(self) -> NDArray[Any]:
        """float32 [layers, heads, value_dim], the weighted sum of the values for the query.

        The sum is taken before the output projection.

        Raises:
            OutputMissing: the call had no `query`.
        """
        return present(
            self.received_context, "the result has no context vectors: pass the position of a token as query"
        )

    @property
    def vectors(self) -> AttentionVectors:
        """What the context vector of the query is computed from.

        Raises:
            OutputMissing: the call did not ask for the vectors, or an earlier version exported the model.
        """
        return present(
            self.received_vectors,
            "the result has no vectors: pass vectors=True, and export a model of an earlier version again",
        )

    @property
    def tokens(self) -> list[str]:
        """The n tokens of a text or a pair, as the tokenizer's vocabulary spells them.

        Raises:
            OutputMissing: the sequence was no text and no pair.
        """
        return present(self.received_tokens, "the result has no tokens: pass a text or a pair of texts")


def attend_request(
    sequence: str | tuple[str, str] | bytes | PathLike[str] | ArrayLike, **options: Unpack[AttendOptions]
) -> pb.AttendRequest:
    """Build a request from the arguments of `Client.attend`.

    Raises:
        TypeError: an option has the wrong type.
        InvalidInput: the sequence is of another type, or an index is out of range.
    """
    if isinstance(sequence, list) and any(isinstance(one, str) for one in sequence):
        raise InvalidInput("sequence is a list of texts: pass one text, or a tuple of two texts", field="texts")
    kind = input_kind_of(sequence)
    # EncodeRequest and AttendRequest hold their input in the same fields.
    encode = pb.EncodeRequest()
    kind.fill(encode, [kind.convert(0, sequence)])
    request = pb.AttendRequest(
        model=checked_text("model", options.get("model", "")),
        model_version=checked_text("model_version", options.get("model_version", "")),
        request_id=own_id(options) or random_id(),
        layers=_indices("layers", options.get("layers")),
        heads=_indices("heads", options.get("heads")),
        vectors=options.get("vectors", False),
    )
    getattr(request, kind.name).CopyFrom(getattr(encode, kind.name))
    if (query := options.get("query")) is not None:
        request.query = whole_number("query", query)
    return request


@reading_reply
def read_attention(response: pb.AttendResponse, round_trip_s: float) -> Attention:
    """Read a reply.

    Raises:
        HeadwaiterError: an array has a wrong shape or data type.
    """
    weights = float_array(response.weights)
    check_shape("weights", weights, None, None, *2 * weights.shape[-1:])
    tokens = list(response.tokens) or None
    if tokens and len(tokens) != weights.shape[-1]:
        raise ValueError(f"{len(tokens)} tokens for weights of the shape {list(weights.shape)}")
    context = float_array(response.context) if response.HasField("context") else None
    if context is not None:
        check_shape("context", context, *weights.shape[:2], None)
    vectors = None
    if response.HasField("values"):
        vectors = AttentionVectors(
            *(float_array(getattr(response, name)).copy() for name in ("query_vector", "keys", "values"))
        )
        check_shape("query_vector", vectors.query_vector, None)
        check_shape("keys", vectors.keys, weights.shape[-1], *vectors.query_vector.shape)
        check_shape("values", vectors.values, weights.shape[-1], None)
    return Attention(
        # The received bytes are read-only, so the caller gets copies.
        weights=weights.copy(),
        received_context=None if context is None else context.copy(),
        received_tokens=tokens,
        received_vectors=vectors,
        timings=read_timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


def _indices(field: str, indices: Iterable[SupportsIndex] | None) -> list[int]:
    """Return checked indices for a request, in which the empty list stands for all."""
    if indices is None:
        return []
    check_type(field, indices, Iterable, "a list, such as [0]")
    checked = [whole_number(field, one) for one in indices]
    if not checked:
        raise InvalidInput(f"{field} is empty: pass at least one index, or leave {field} out for all", field=field)
    return checked
