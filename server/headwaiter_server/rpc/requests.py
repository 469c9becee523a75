"""Reads requests: bytes in, checked sequences out, or a sentence that says what is wrong with which one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import Failures, InvalidInput, ModelNotFound, SequenceTooLong
from headwaiter_server.models.tokenizer import Truncation
from headwaiter_server.scheduling.due_times import Priority

_Message = TypeVar("_Message", bound=Message)

_IDS: dict[int, np.dtype[Any]] = {pb.DATA_TYPE_INT32: np.dtype("<i4"), pb.DATA_TYPE_INT64: np.dtype("<i8")}
_FLOATS: dict[int, np.dtype[Any]] = {pb.DATA_TYPE_FLOAT32: np.dtype("<f4"), pb.DATA_TYPE_FLOAT16: np.dtype("<f2")}
_PRIORITIES: dict[int, Priority] = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
_TRUNCATIONS: dict[int, Truncation] = {
    pb.TRUNCATION_UNSPECIFIED: Truncation.ERROR,
    pb.TRUNCATION_ERROR: Truncation.ERROR,
    pb.TRUNCATION_LEFT: Truncation.LEFT,
    pb.TRUNCATION_RIGHT: Truncation.RIGHT,
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

    @property
    def text_bytes(self) -> int:
        """Return the most bytes of all texts."""
        return self.tokens * _TEXT_BYTES_PER_TOKEN


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


def check_options(request: pb.EncodeRequest) -> None:
    """Refuse what no model can do; `outputs` looks at what is asked of the reply.

    Raises:
        InvalidInput: naming the field.
    """
    if request.priority not in _PRIORITIES:
        raise InvalidInput("priority: INTERACTIVE or BULK", field="priority")
    if request.truncation not in _TRUNCATIONS:
        raise InvalidInput("truncation: ERROR, LEFT or RIGHT", field="truncation")
    if not 0 <= request.timeout_s < float("inf"):
        raise InvalidInput("timeout_s: seconds from now, or 0 for the deadline of the call", field="timeout_s")
    for_texts = {
        "truncation": truncation_of(request) is not Truncation.ERROR,
        "output.offsets": request.output.offsets,
    }
    for field, wanted in for_texts.items():
        if wanted and request.WhichOneof("input") in ("tokens", "features"):
            raise InvalidInput(f"{field}: that is for texts; leave the field out", field=field)


def priority_of(request: pb.EncodeRequest) -> Priority:
    """Return the priority of a request whose options are known to be good."""
    return _PRIORITIES[request.priority]


def truncation_of(request: pb.EncodeRequest) -> Truncation:
    """Return the truncation of a request whose options are known to be good."""
    return _TRUNCATIONS[request.truncation]


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


def read_tokens(
    message: pb.TokenSequences, manifest: Manifest, limits: RequestLimits, failures: Failures
) -> list[NDArray[np.generic]]:
    """Return the token ids [n_i] of each sequence, views into the message's bytes.

    Args:
        message: the ids.
        manifest: of the model.
        limits: what one request may hold.
        failures: takes what is wrong with single sequences.

    Raises:
        InvalidInput: what is wrong with all of them.
    """
    if not manifest.vocabulary_size:
        raise InvalidInput(
            f"tokens: the model takes features of width {manifest.feature_width}, not token ids", field="tokens"
        )
    dtype = _IDS.get(message.dtype)
    if dtype is None:
        raise InvalidInput(f"tokens.dtype: ids are INT32 or INT64, not {_name(message.dtype)}", field="tokens.dtype")
    ends = _ends(message.lengths, "tokens", manifest, limits, failures)
    rows = _rows(message.data, dtype, 1, ends[-1], "tokens")[:, 0]
    # A negative id is a very large one to whoever knows no signs: so one look tells that all are good.
    if rows.view(dtype.str.replace("i", "u")).max(initial=0) < manifest.vocabulary_size:
        return _split(rows, ends)
    for index, row, position in _first_of_each((rows < 0) | (rows >= manifest.vocabulary_size), ends):
        failures.add(
            InvalidInput(
                f"tokens: sequence {index} has id {rows[row]} at position {position}, and ids are 0 to "
                f"{manifest.vocabulary_size - 1}",
                sequence=index,
                field="tokens.data",
                limit=manifest.vocabulary_size - 1,
                actual=int(rows[row]),
            )
        )
    return _split(rows, ends)


def read_features(
    message: pb.FeatureSequences, manifest: Manifest, limits: RequestLimits, failures: Failures
) -> list[NDArray[np.generic]]:
    """Return the features [n_i, width] of each sequence, views into the message's bytes; otherwise as `read_tokens`."""
    if not manifest.feature_width:
        raise InvalidInput("features: the model takes token ids or texts, not features", field="features")
    # Who sends no sequences cannot know their width; that there are none is said below.
    if message.lengths and message.width != manifest.feature_width:
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
    ends = _ends(message.lengths, "features", manifest, limits, failures)
    rows = _rows(message.data, dtype, message.width, ends[-1], "features")
    for index, _, position in _first_of_each(~np.isfinite(rows).all(axis=1), ends):
        failures.add(
            InvalidInput(
                f"features: sequence {index} has a NaN or an infinity at position {position}: features must be finite",
                sequence=index,
                field="features.data",
            )
        )
    return _split(rows, ends)


def check_lengths(lengths: Sequence[int], field: str, manifest: Manifest, failures: Failures) -> None:
    """Look for sequences that are shorter or longer than the model takes.

    Args:
        lengths: tokens of each sequence.
        field: where they stand in the request.
        manifest: of the model.
        failures: takes an InvalidInput for each that is too short, and a SequenceTooLong.
    """
    kind = field.partition(".")[0]
    least, most = max(1, manifest.min_tokens), manifest.max_tokens
    # So it is almost always, and every request pays for the look.
    if least <= min(lengths) and max(lengths) <= most:
        return
    for index, length in enumerate(lengths):
        if length == 0:
            sentence = f"{kind}: sequence {index} is empty: a sequence has at least one token"
            failures.add(InvalidInput(sentence, sequence=index, field=field))
        elif length < least:
            sentence = (
                f"{kind}: sequence {index} is shorter than the {least} tokens that the model needs, in which no token "
                "attends to itself"
            )
            failures.add(InvalidInput(sentence, sequence=index, field=field, limit=least, actual=length))
        elif length > most:
            sentence = f"{kind}: sequence {index} has {length} tokens, and the model takes at most {most}"
            failures.add(SequenceTooLong(sentence, sequence=index, field=field, limit=most, actual=length))


def _ends(
    lengths: Sequence[int], field: str, manifest: Manifest, limits: RequestLimits, failures: Failures
) -> list[int]:
    """Return where each sequence ends among the rows, once the lengths have been looked at."""
    check_count(len(lengths), limits)
    # For the few sequences that most requests have, numpy takes longer to start than Python takes in all.
    counts = list(lengths)
    ends = list(accumulate(counts))
    check_lengths(counts, f"{field}.lengths", manifest, failures)
    check_tokens(ends[-1], limits)
    return ends


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


def _split(rows: NDArray[Any], ends: list[int]) -> list[NDArray[np.generic]]:
    """Return one view of the rows a sequence."""
    return [rows[begin:end] for begin, end in pairwise([0, *ends])]


def _first_of_each(wrong: NDArray[np.bool_], ends: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each sequence that has a wrong row, with the first such row and its position in the sequence."""
    if not wrong.any():
        return
    rows = np.flatnonzero(wrong)
    sequences, firsts = np.unique(np.searchsorted(ends, rows, side="right"), return_index=True)
    for index, row in zip(sequences.tolist(), rows[firsts].tolist(), strict=True):
        yield index, row, row - (ends[index - 1] if index else 0)


def _name(dtype: pb.DataType) -> str:
    # A newer client may send a number that has no name here.
    known = dtype in pb.DataType.values()
    return pb.DataType.Name(dtype).removeprefix("DATA_TYPE_") if known else str(dtype)
