"""What a request may ask for beside its sequences."""

import uuid
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, SupportsIndex, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import DTypeLike

from headwaiter_client.calls.arguments import check_type
from headwaiter_client.calls.inputs import whole_number
from headwaiter_client.errors import InvalidInput
from headwaiter_proto import encoder_pb2 as pb

_DTYPES: dict[np.dtype[Any], pb.DataType] = {
    np.dtype("<f4"): pb.DATA_TYPE_FLOAT32,
    np.dtype("<f2"): pb.DATA_TYPE_FLOAT16,
    np.dtype("i1"): pb.DATA_TYPE_INT8,
}
_Value = TypeVar("_Value")

_PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}
_TRUNCATIONS = {"error": pb.TRUNCATION_ERROR, "left": pb.TRUNCATION_LEFT, "right": pb.TRUNCATION_RIGHT}
_POOLINGS = {
    None: pb.POOLING_UNSPECIFIED,
    "mean": pb.POOLING_MEAN,
    "cls": pb.POOLING_CLS,
    "max": pb.POOLING_MAX,
    "last": pb.POOLING_LAST,
}


class RequestOptions(TypedDict, total=False):
    """What a request may ask for.

    Attributes:
        pooled: return one vector a sequence (default).
        hidden: return one vector a token (default: no).
        dtype: of the result: float32 (default), float16, or int8 with a scale a row.
        hidden_dtype: of hidden vectors, where it is not `dtype`.
        pooling: "mean", "cls", "max" or "last"; the model's own when None (default).
        normalize: scale pooled vectors to unit length or not; the model's own choice when None (default).
        dimensions: keep so many of a pooled vector's first dimensions, for models trained to allow it; all when None
            (default).
        truncation: what to do with a text of more tokens than the model takes: "error" (default), or drop tokens on
            the "left" or the "right".
        prompt: name of a prompt of the checkpoint, such as "query", to put before each text.
        offsets: return where in its text each token stands (default: no).
        partial: answer the good sequences and list the others in `failures`, rather than fail (default: no).
        model: name of the model; may be left out where the server holds one.
        request_id: what the server's log calls the request; made up when left out. Where a list takes several
            requests, the index of its first sequence is appended to each but the first.
        priority: "interactive" (default), or "bulk" for work that nobody waits for: it takes the capacity that others
            leave.
    """

    pooled: bool
    hidden: bool
    dtype: DTypeLike
    hidden_dtype: DTypeLike | None
    pooling: Literal["mean", "cls", "max", "last"] | None
    normalize: bool | None
    dimensions: SupportsIndex | None
    truncation: Literal["error", "left", "right"]
    prompt: str
    offsets: bool
    partial: bool
    model: str
    request_id: str
    priority: Literal["interactive", "bulk"]


_FLAG: tuple[type | UnionType, str] = (bool | np.bool_, "a bool")
_TEXT: tuple[type | UnionType, str] = (str, "a str")
# Of what type each option is, and what messages call that; NumPy knows what is a data type.
_TYPES = {
    "pooled": _FLAG,
    "hidden": _FLAG,
    "dtype": (object, "a data type"),
    "hidden_dtype": (object, "a data type"),
    "pooling": (str | None, "a str or None"),
    "normalize": (bool | np.bool_ | None, "a bool or None"),
    "dimensions": (SupportsIndex | None, "a whole number or None"),
    "truncation": _TEXT,
    "prompt": _TEXT,
    "offsets": _FLAG,
    "partial": _FLAG,
    "model": _TEXT,
    "request_id": _TEXT,
    "priority": _TEXT,
}


def envelope(**options: Unpack[RequestOptions]) -> pb.EncodeRequest:
    """Builds a request without sequences.

    Raises:
        TypeError: an option is of another type, or there is none of that name.
        InvalidInput: an option has a value that cannot be sent.
    """
    for name, value in options.items():
        if name not in _TYPES:
            raise TypeError(f"there is no option {name} here; there are {', '.join(_TYPES)}")
        check_type(name, value, *_TYPES[name])
    return _envelope(**options)


def _envelope(
    *,
    pooled: bool = True,
    hidden: bool = False,
    dtype: DTypeLike = np.float32,
    hidden_dtype: DTypeLike | None = None,
    pooling: Literal["mean", "cls", "max", "last"] | None = None,
    normalize: bool | None = None,
    dimensions: SupportsIndex | None = None,
    truncation: Literal["error", "left", "right"] = "error",
    prompt: str = "",
    offsets: bool = False,
    partial: bool = False,
    model: str = "",
    request_id: str = "",
    priority: Literal["interactive", "bulk"] = "interactive",
) -> pb.EncodeRequest:
    if not (pooled or hidden):
        raise InvalidInput("the request asks for no output; ask for pooled, hidden or both", field="output")
    output = pb.OutputOptions(
        # With hidden not asked for, nothing is: a model without pooling then answers with its hidden states.
        pooled=pooled and hidden,
        hidden=hidden,
        dtype=_dtype("dtype", dtype),
        hidden_dtype=pb.DATA_TYPE_UNSPECIFIED if hidden_dtype is None else _dtype("hidden_dtype", hidden_dtype),
        pooling=_named("output.pooling", pooling, _POOLINGS),
        dimensions=0 if dimensions is None else whole_number("output.dimensions", dimensions, least=1),
        offsets=offsets,
    )
    if normalize is not None:
        output.normalize = normalize
    request = pb.EncodeRequest(
        model=checked_text("model", model),
        request_id=checked_text("request_id", request_id) or uuid.uuid4().hex,
        output=output,
        truncation=_named("truncation", truncation, _TRUNCATIONS),
        priority=_named("priority", priority, _PRIORITIES),
        partial=partial,
    )
    if prompt:
        request.texts.prompt = checked_text("prompt", prompt)
    return request


def checked_text(field: str, value: str) -> str:
    """Returns a text that the wire can hold.

    Raises:
        TypeError: it is none.
        InvalidInput: it is not Unicode.
    """
    check_type(field, value, str, "a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{field} is not Unicode text: {error}", field=field) from error
    return value


def _dtype(option: str, dtype: DTypeLike) -> pb.DataType:
    try:
        return _DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError, ValueError, SyntaxError) as error:  # All of them numpy's ways to say no.
        raise InvalidInput(
            f"{option} is {dtype!r}; results are float32, float16 or int8", field=f"output.{option}"
        ) from error


def _named(field: str, name: str | None, values: Mapping[Any, _Value]) -> _Value:
    if name not in values:
        *others, last = (repr(known) for known in values)
        option = field.rpartition(".")[2]
        raise InvalidInput(f"{option} is {name!r}; it is {', '.join(others)} or {last}", field=field)
    return values[name]
