"""Requests out, results in: what both clients share, without any I/O."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headwaiter_client.errors import HeadwaiterError, InvalidInput
from headwaiter_proto import encoder_pb2 as pb

# Paths of the contract's methods, by their names.
METHODS = {
    method.name: f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

# The health protocol is two tiny messages; written out here, they save the package that defines them.
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = b""  # The server as a whole.
HEALTH_SERVING = b"\x08\x01"  # status: SERVING

_Message = TypeVar("_Message", bound=Message)

_RESULT_DTYPES: dict[np.dtype[Any], pb.DataType] = {
    np.dtype("<f4"): pb.DATA_TYPE_FLOAT32,
    np.dtype("<f2"): pb.DATA_TYPE_FLOAT16,
}
_WIRE_DTYPES = _RESULT_DTYPES | {np.dtype("<i4"): pb.DATA_TYPE_INT32, np.dtype("<i8"): pb.DATA_TYPE_INT64}
_PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}
_TENSOR_DTYPES = {wire: dtype for dtype, wire in _RESULT_DTYPES.items()}


class RequestOptions(TypedDict, total=False):
    """What a request may ask for.

    Attributes:
        pooled: return one vector a sequence (default).
        hidden: return one vector a token (default: no).
        dtype: of the result: float32 (default) or float16.
        normalize: scale pooled vectors to unit length or not; the model's own choice when None (default).
        model: name of the model; may be left out where the server holds one.
        request_id: what the server's log calls the request; made up when left out.
        priority: "interactive" (default), or "bulk" for work that nobody waits for: it takes the capacity that others
            leave.
    """

    pooled: bool
    hidden: bool
    dtype: DTypeLike
    normalize: bool | None
    model: str
    request_id: str
    priority: Literal["interactive", "bulk"]


@dataclass(frozen=True)
class ModelRef:
    """Which weights answered: vectors of two digests must not be compared.

    Attributes:
        name: the model's name.
        digest: SHA-256 of its bundle's manifest, in hexadecimal.
    """

    name: str
    digest: str


@dataclass(frozen=True)
class Timings:
    """Where the time of a call went, in seconds.

    Attributes:
        round_trip_s: from sending the request to holding the reply, measured by the client.
        tokenize_s: the server parsed, checked and tokenised the request.
        queue_s: it waited for the device.
        assemble_s: the batch was put together.
        compute_s: the model ran.
        respond_s: the results were joined and the reply built.
        total_s: the sum of the server's stages; `round_trip_s - total_s` went to the network and gRPC.
        batches: batches that the sequences of the request ran in.
    """

    round_trip_s: float
    tokenize_s: float
    queue_s: float
    assemble_s: float
    compute_s: float
    respond_s: float
    total_s: float
    batches: int


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of a request; its arrays are read-only views of the reply.

    Attributes:
        pooled: [batch, width] one vector a sequence; None when not asked for or not offered.
        hidden: for each sequence [length, width], one vector a token, all views of one array; None when not asked for.
        lengths: [batch] tokens of each sequence, special tokens included.
        timings: where the time went.
        model: which weights answered.
        request_id: what the server's log calls the request.
    """

    pooled: NDArray[Any] | None
    hidden: list[NDArray[Any]] | None
    lengths: NDArray[np.int64]
    timings: Timings
    model: ModelRef
    request_id: str


def texts_request(texts: Iterable[str], **options: Unpack[RequestOptions]) -> pb.EncodeRequest:
    """Builds a request of texts.

    Raises:
        InvalidInput: a bare str in place of a list, an item that is no text, or wrong options.
    """
    if isinstance(texts, str):
        raise InvalidInput("texts is one str; pass a list of texts, such as [text]", field="texts")
    message = pb.Texts()
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise _invalid(index, "texts.values", f"is of type {type(text).__name__}; texts are str")
        try:
            message.values.append(text)
        except UnicodeEncodeError as error:
            raise _invalid(index, "texts.values", f"is not Unicode text: {error}") from error
    return pb.EncodeRequest(texts=message, **_envelope(**options))


def tokens_request(sequences: Iterable[ArrayLike], **options: Unpack[RequestOptions]) -> pb.EncodeRequest:
    """Builds a request of token ids, each sequence [n] integers; sent as 32-bit values when all of them fit.

    Raises:
        InvalidInput: a sequence of another rank or of other values than 64-bit integers, or wrong options.
    """
    ids = [_token_ids(index, sequence) for index, sequence in enumerate(sequences)]
    packed = np.concatenate([np.empty(0, "<i8"), *ids])
    narrow = packed.astype("<i4")
    values = _values(narrow if np.array_equal(narrow, packed) else packed)
    message = pb.TokenSequences(**values, lengths=map(len, ids))
    return pb.EncodeRequest(tokens=message, **_envelope(**options))


def features_request(sequences: Iterable[ArrayLike], **options: Unpack[RequestOptions]) -> pb.EncodeRequest:
    """Builds a request of feature vectors, each sequence [n, width]; sent as float32 unless all are float16.

    Raises:
        InvalidInput: a sequence of another rank or width, or of values that are not real numbers, or wrong options.
    """
    rows = [_feature_rows(index, sequence) for index, sequence in enumerate(sequences)]
    width = rows[0].shape[1] if rows else 0
    for index, sequence in enumerate(rows):
        if sequence.shape[1] != width:
            raise _invalid(index, "features.width", f"is {sequence.shape[1]} wide and the first {width}")
    half = bool(rows) and all(sequence.dtype == np.float16 for sequence in rows)
    packed = np.concatenate([np.empty((0, width), "<f2"), *rows], dtype="<f2" if half else "<f4")
    message = pb.FeatureSequences(**_values(packed), width=width, lengths=map(len, rows))
    return pb.EncodeRequest(features=message, **_envelope(**options))


def model_request(name: str) -> pb.GetModelRequest:
    """Builds a request for the description of a model.

    Raises:
        InvalidInput: the name is no text.
    """
    return pb.GetModelRequest(name=_text("name", name))


def parse(raw: bytes, kind: type[_Message], request_id: str | None) -> _Message:
    """Reads the message of a reply.

    Raises:
        HeadwaiterError: it is no such message.
    """
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise HeadwaiterError(
            "INTERNAL: the reply is not the message the contract names", request_id=request_id
        ) from error


def encoding(response: pb.EncodeResponse, round_trip_s: float) -> Encoding:
    """Reads a reply.

    Raises:
        HeadwaiterError: the reply does not hold what it says.
    """
    try:
        lengths = np.array(response.lengths, dtype=np.int64)
        pooled = array(response.pooled) if response.HasField("pooled") else None
        hidden = _split(array(response.hidden), lengths) if response.HasField("hidden") else None
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwaiterError(f"the reply cannot be read: {error}", request_id=response.request_id) from error
    return Encoding(
        pooled=pooled,
        hidden=hidden,
        lengths=lengths,
        timings=timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


def timings(server: pb.Timings, round_trip_s: float) -> Timings:
    """Puts the server's stages and the client's round trip side by side."""
    return Timings(
        round_trip_s=round_trip_s,
        tokenize_s=server.tokenize_s,
        queue_s=server.queue_s,
        assemble_s=server.assemble_s,
        compute_s=server.compute_s,
        respond_s=server.respond_s,
        total_s=server.total_s,
        batches=server.batches,
    )


def model_ref(message: pb.ModelRef) -> ModelRef:
    """Reads a model's name and digest."""
    return ModelRef(name=message.name, digest=message.digest)


def array(tensor: pb.Tensor) -> NDArray[Any]:
    """Views a tensor's bytes.

    Raises:
        KeyError: its data type is none that results come in.
        ValueError: it has not as many bytes as its shape says.
    """
    return np.frombuffer(tensor.data, _TENSOR_DTYPES[tensor.dtype]).reshape(tuple(tensor.shape))


def _envelope(
    *,
    pooled: bool = True,
    hidden: bool = False,
    dtype: DTypeLike = np.float32,
    normalize: bool | None = None,
    model: str = "",
    request_id: str = "",
    priority: Literal["interactive", "bulk"] = "interactive",
) -> dict[str, Any]:
    """Turns the options into the fields of a request beside its input."""
    if not (pooled or hidden):
        raise InvalidInput("the request asks for no output; ask for pooled, hidden or both", field="output")
    try:
        result_dtype = _RESULT_DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError, ValueError, SyntaxError) as error:  # All of them numpy's ways to say no.
        raise InvalidInput(f"dtype is {dtype!r}; results are float32 or float16", field="output.dtype") from error
    # With hidden not asked for, nothing is: a model without pooling then answers with its hidden states.
    output = pb.OutputOptions(pooled=pooled and hidden, hidden=hidden, dtype=result_dtype)
    if normalize is not None:
        output.normalize = normalize
    request_id = _text("request_id", request_id) or uuid.uuid4().hex
    if priority not in _PRIORITIES:
        raise InvalidInput(f"priority is {priority!r}; it is 'interactive' or 'bulk'", field="priority")
    return {
        "model": _text("model", model),
        "request_id": request_id,
        "output": output,
        "priority": _PRIORITIES[priority],
    }


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is of type {type(value).__name__}; it must be a str", field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{field} is not Unicode text: {error}", field=field) from error
    return value


def _token_ids(index: int, sequence: ArrayLike) -> NDArray[np.int64]:
    ids = _sequence(index, sequence, "tokens", rank=1)
    whole = ids.size == 0 or ids.dtype.kind == "i" or (ids.dtype.kind == "u" and ids.max() <= np.iinfo(np.int64).max)
    if not whole:
        raise _invalid(index, "tokens.data", f"holds {ids.dtype} values; token ids are integers below 2**63")
    return ids.astype("<i8")


def _feature_rows(index: int, sequence: ArrayLike) -> NDArray[Any]:
    rows = _sequence(index, sequence, "features", rank=2)
    if rows.dtype.kind not in "fiu":
        raise _invalid(index, "features.data", f"holds {rows.dtype} values; features are real numbers")
    with np.errstate(over="ignore"):  # What is beyond float32 becomes infinite, which the server refuses.
        return rows if rows.dtype == np.float16 else rows.astype("<f4")


def _sequence(index: int, sequence: ArrayLike, field: str, rank: int) -> NDArray[Any]:
    try:
        array = np.asarray(sequence)
    except (ValueError, TypeError, RuntimeError) as error:  # The latter two from tensors on a GPU or with a gradient.
        raise _invalid(index, f"{field}.data", f"is no array: {error}") from error
    if array.ndim != rank:
        raise _invalid(index, f"{field}.data", f"has {array.ndim} dimensions; a sequence of {field} has {rank}")
    return array


def _invalid(index: int, field: str, what: str) -> InvalidInput:
    return InvalidInput(f"sequence {index} {what}", sequence=index, field=field)


def _values(packed: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": _WIRE_DTYPES[packed.dtype], "data": packed.tobytes()}


def _split(hidden: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    if lengths.sum() != len(hidden):
        raise ValueError(f"hidden has {len(hidden)} rows for {lengths.sum()} tokens")
    return [hidden[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]
