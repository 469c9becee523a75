"""Reads requests: bytes in, checked sequences out, or a sentence that says what is wrong with which one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.batching.job import Priority
from headwaiter_server.errors import InvalidInput, ModelNotFound, SequenceTooLong

_Message = TypeVar("_Message", bound=Message)

_IDS: dict[int, np.dtype[Any]] = {pb.DATA_TYPE_INT32: np.dtype("<i4"), pb.DATA_TYPE_INT64: np.dtype("<i8")}
_FLOATS: dict[int, np.dtype[Any]] = {pb.DATA_TYPE_FLOAT32: np.dtype("<f4"), pb.DATA_TYPE_FLOAT16: np.dtype("<f2")}
_PRIORITIES: dict[int, Priority] = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
# Ids go into the log, one line each, and into errors, which travel in HTTP/2 headers of 8 KiB.
_MAX_ID_CHARACTERS = 256
# A token of running text is some 4 bytes; a request within its tokens is never near this.
_TEXT_BYTES_PER_TOKEN = 16


@dataclass(frozen=True)
class RequestLimits:
    """What one request may hold."""

    sequences: int
    tokens: int


def parse(raw: bytes, message: _Message) -> _Message:
    """Fill a message from its bytes.

    Raises:
        InvalidInput: the bytes are no such message.
    """
    try:
        message.ParseFromString(raw)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise InvalidInput(f"the message is not a {name}: check the client's .proto file") from None
    return message


def check_id(request_id: str) -> None:
    """Refuse an id that would spoil the log.

    Raises:
        InvalidInput: it is too long, or has line ends and the like.
    """
    if len(request_id) > _MAX_ID_CHARACTERS or not request_id.isprintable():
        raise InvalidInput(f"request_id: at most {_MAX_ID_CHARACTERS} printable characters", field="request_id")


def check_model(name: str, manifest: Manifest) -> None:
    """Refuse the name of a model that is not served; the empty name means the only one.

    Raises:
        ModelNotFound: with the name that would be right.
    """
    if name not in ("", manifest.name):
        raise ModelNotFound(
            f"there is no model {name[:_MAX_ID_CHARACTERS]!r} here: this server holds {manifest.name!r}", field="model"
        )


def check_options(request: pb.EncodeRequest, manifest: Manifest) -> None:
    """Refuse what the model or this version cannot do.

    Raises:
        InvalidInput: naming the field.
    """
    output = request.output
    later = {
        "output.pooling": output.pooling not in (pb.POOLING_UNSPECIFIED, manifest.pooling),
        "output.dimensions": output.dimensions not in (0, manifest.width),
        "output.offsets": output.offsets,
        "truncation": request.truncation not in (pb.TRUNCATION_UNSPECIFIED, pb.TRUNCATION_ERROR),
        "partial": request.partial,
    }
    for field, wanted in later.items():
        if wanted:
            raise _not_yet(field)
    for field, dtype in (("output.dtype", output.dtype), ("output.hidden_dtype", output.hidden_dtype)):
        if dtype not in (pb.DATA_TYPE_UNSPECIFIED, *_FLOATS):
            raise InvalidInput(f"{field}: replies are FLOAT32 or FLOAT16", field=field)
    if request.priority not in _PRIORITIES:
        raise InvalidInput("priority: INTERACTIVE or BULK", field="priority")
    if not 0 <= request.timeout_s < float("inf"):
        raise InvalidInput("timeout_s: seconds from now, or 0 for the deadline of the call", field="timeout_s")
    if output.pooled and manifest.pooling == pb.POOLING_NONE:
        raise InvalidInput("output.pooled: the model has no pooling; ask for hidden", field="output.pooled")


def priority_of(request: pb.EncodeRequest) -> Priority:
    """Return the priority of a request whose options are known to be good."""
    return _PRIORITIES[request.priority]


def check_count(sequences: int, limits: RequestLimits) -> None:
    """Refuse a request of no sequences, or of too many.

    Raises:
        InvalidInput: with the limit.
    """
    if sequences == 0:
        raise InvalidInput("the request has no sequences: send at least one")
    if sequences > limits.sequences:
        raise InvalidInput(
            f"the request has {sequences} sequences, and the server takes {limits.sequences} at most: split it",
            limit=limits.sequences,
            actual=sequences,
        )


def check_texts(texts: pb.Texts, limits: RequestLimits) -> None:
    """Refuse texts that are beyond the limits by their mere size, before anyone spends time on their tokens.

    Raises:
        InvalidInput: with the limit, or naming what is not offered.
    """
    if texts.prompt:
        raise _not_yet("texts.prompt")
    check_count(len(texts.values), limits)
    limit_bytes = limits.tokens * _TEXT_BYTES_PER_TOKEN
    if texts.ByteSize() > limit_bytes:
        raise InvalidInput(
            f"texts: {texts.ByteSize()} bytes in all, and the server takes {limit_bytes} in a request: split it",
            field="texts",
            limit=limit_bytes,
            actual=texts.ByteSize(),
        )


def check_tokens(tokens: int, limits: RequestLimits) -> None:
    """Refuse a request of too many tokens.

    Raises:
        InvalidInput: with the limit.
    """
    if tokens > limits.tokens:
        raise InvalidInput(
            f"the request has {tokens} tokens, and the server takes {limits.tokens} at most: split it",
            limit=limits.tokens,
            actual=tokens,
        )


def read_tokens(message: pb.TokenSequences, manifest: Manifest, limits: RequestLimits) -> list[NDArray[np.generic]]:
    """Return the token ids [n_i] of each sequence, views into the message's bytes.

    Raises:
        InvalidInput: what is wrong, and with which sequence.
    """
    if not manifest.vocabulary_size:
        raise InvalidInput(
            f"tokens: the model takes features of width {manifest.feature_width}, not token ids", field="tokens"
        )
    dtype = _IDS.get(message.dtype)
    if dtype is None:
        raise InvalidInput(f"tokens.dtype: ids are INT32 or INT64, not {_name(message.dtype)}", field="tokens.dtype")
    ends = _ends(message.lengths, "tokens", manifest, limits)
    rows = _rows(message.data, dtype, 1, int(ends[-1]), "tokens")[:, 0]
    outside = (rows < 0) | (rows >= manifest.vocabulary_size)
    if outside.any():
        row = int(outside.argmax())
        index, position = _place(row, ends)
        raise InvalidInput(
            f"tokens: sequence {index} has id {rows[row]} at position {position}, and ids are 0 to "
            f"{manifest.vocabulary_size - 1}",
            sequence=index,
            field="tokens.data",
            limit=manifest.vocabulary_size - 1,
            actual=int(rows[row]),
        )
    return np.split(rows, ends[:-1])


def read_features(message: pb.FeatureSequences, manifest: Manifest, limits: RequestLimits) -> list[NDArray[np.generic]]:
    """Return the features [n_i, width] of each sequence.

    Raises:
        InvalidInput: what is wrong, and with which sequence.
    """
    if not manifest.feature_width:
        raise InvalidInput("features: the model takes token ids or texts, not features", field="features")
    if message.width != manifest.feature_width:
        raise InvalidInput(
            f"features.width is {message.width}, and the model takes features of width {manifest.feature_width}",
            field="features.width",
            limit=manifest.feature_width,
            actual=message.width,
        )
    dtype = _FLOATS.get(message.dtype)
    if dtype is None:
        raise InvalidInput(
            f"features.dtype: features are FLOAT32 or FLOAT16, not {_name(message.dtype)}", field="features.dtype"
        )
    ends = _ends(message.lengths, "features", manifest, limits)
    rows = _rows(message.data, dtype, message.width, int(ends[-1]), "features")
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        index, position = _place(int(wrong.argmax()), ends)
        raise InvalidInput(
            f"features: sequence {index} has a NaN or an infinity at position {position}: features must be finite",
            sequence=index,
            field="features.data",
        )
    return np.split(rows, ends[:-1])


def check_lengths(lengths: NDArray[np.int64], field: str, manifest: Manifest) -> None:
    """Refuse sequences that are shorter or longer than the model takes.

    Raises:
        InvalidInput: a sequence is too short.
        SequenceTooLong: a sequence is too long.
    """
    kind = field.partition(".")[0]
    if not lengths.all():
        index = int((lengths == 0).argmax())
        raise InvalidInput(
            f"{kind}: sequence {index} is empty: a sequence has at least one token", sequence=index, field=field
        )
    if lengths.min() < manifest.min_tokens:
        index = int((lengths < manifest.min_tokens).argmax())
        raise InvalidInput(
            f"{kind}: sequence {index} is shorter than the {manifest.min_tokens} tokens that the model needs, in "
            "which no token attends to itself",
            sequence=index,
            field=field,
            limit=manifest.min_tokens,
            actual=int(lengths[index]),
        )
    if lengths.max() > manifest.max_tokens:
        index = int((lengths > manifest.max_tokens).argmax())
        raise SequenceTooLong(
            f"{kind}: sequence {index} has {lengths[index]} tokens, and the model takes at most {manifest.max_tokens}",
            sequence=index,
            field=field,
            limit=manifest.max_tokens,
            actual=int(lengths[index]),
        )


def _ends(lengths: Sequence[int], field: str, manifest: Manifest, limits: RequestLimits) -> NDArray[np.int64]:
    """Return where each sequence ends among the rows, [B], once every length is known to be good."""
    check_count(len(lengths), limits)
    counts = np.array(lengths, np.int64)
    check_lengths(counts, f"{field}.lengths", manifest)
    check_tokens(int(counts.sum()), limits)
    return np.cumsum(counts)


def _rows(data: bytes, dtype: np.dtype[Any], width: int, count: int, field: str) -> NDArray[Any]:
    """View bytes as [count, width]."""
    wanted_bytes = count * width * dtype.itemsize
    if len(data) != wanted_bytes:
        raise InvalidInput(
            f"{field}: lengths add up to {count} × {width} values of {dtype.itemsize} bytes, {wanted_bytes} bytes in "
            f"all, but data has {len(data)}",
            field=f"{field}.data",
            limit=wanted_bytes,
            actual=len(data),
        )
    return np.frombuffer(data, dtype).reshape(count, width)


def _place(row: int, ends: NDArray[np.int64]) -> tuple[int, int]:
    """Return the sequence that holds a row, and the row's position in it."""
    index = int(np.searchsorted(ends, row, side="right"))
    return index, row - (int(ends[index - 1]) if index else 0)


def _not_yet(field: str) -> InvalidInput:
    return InvalidInput(f"{field}: this server does not offer that yet; leave the field out", field=field)


def _name(dtype: pb.DataType) -> str:
    # A newer client may send a number that has no name here.
    known = dtype in pb.DataType.values()
    return pb.DataType.Name(dtype).removeprefix("DATA_TYPE_") if known else str(dtype)
