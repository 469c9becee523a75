"""What attention looked at: requests out, results in, without any I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls import options as _options
from headwaiter_client.calls import results as _results
from headwaiter_client.calls.arguments import check_type
from headwaiter_client.calls.inputs import form_of, whole_number
from headwaiter_client.calls.tensors import array
from headwaiter_client.errors import HeadwaiterError, InvalidInput
from headwaiter_proto import encoder_pb2 as pb


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

    weights: NDArray[Any] = field(repr=False)
    context: NDArray[Any] | None = field(repr=False)
    tokens: list[str] | None
    timings: _results.Timings
    model: _results.ModelRef
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
        TypeError: another argument than the sequence is of another type.
        InvalidInput: the sequence is no text, ids or features, or an index cannot be one.
    """
    if sequence is None or isinstance(sequence, bytes):
        raise InvalidInput(
            f"sequence is of type {type(sequence).__name__}; pass a str, token ids [n] or features [n, width]"
        )
    if isinstance(sequence, (list, tuple)) and any(isinstance(one, str) for one in sequence):
        raise InvalidInput("sequence is a list of texts; pass one text by itself", field="texts")
    form = form_of(sequence)
    # Its forms of input are those of Encode, to the letter.
    encode = _options.envelope(model=model, request_id=request_id)
    form.fill(encode, [form.read(0, sequence)])
    request = pb.AttendRequest(
        model=encode.model,
        request_id=encode.request_id,
        layers=_chosen("layers", layers),
        heads=_chosen("heads", heads),
    )
    getattr(request, form.name).CopyFrom(getattr(encode, form.name))
    if query is not None:
        request.query = whole_number("query", query)
    return request


def attention(response: pb.AttendResponse, round_trip_s: float) -> Attention:
    """Reads a reply.

    Raises:
        HeadwaiterError: the reply does not hold what it says.
    """
    try:
        weights = array(response.weights)
        context = array(response.context) if response.HasField("context") else None
    except (KeyError, ValueError) as error:
        raise HeadwaiterError(f"the reply cannot be read: {error}", request_id=response.request_id) from error
    return Attention(
        weights=weights,
        context=context,
        tokens=list(response.tokens) or None,
        timings=_results.timings(response.timings, round_trip_s),
        model=_results.model_ref(response.model),
        request_id=response.request_id,
    )


def _chosen(field: str, indices: Iterable[SupportsIndex] | None) -> list[int]:
    if indices is None:
        return []
    check_type(field, indices, Iterable, "a list, such as [0]")
    chosen = [whole_number(field, one) for one in indices]
    if not chosen:
        raise InvalidInput(f"{field} is empty; leave it out for all of them", field=field)
    return chosen
