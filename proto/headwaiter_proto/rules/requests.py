"""Read the message of a request, and check everything in the message except its sequences."""

from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.attention_weights import check_single, check_supported
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.outputs import Output, read_output

_Message = TypeVar("_Message", bound=Message)

_PRIORITIES = (pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK)
_TRUNCATIONS = (pb.TRUNCATION_UNSPECIFIED, pb.TRUNCATION_ERROR, pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT)
# Errors quote ids and names, and are sent in HTTP/2 headers of at most 8 KiB.
_MAX_ID_CHARACTERS = 256
# Larger texts are refused without tokenisation; a token of ordinary text has about 4 bytes.
_TEXT_BYTES_PER_TOKEN = 16


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request.

    Attributes:
        sequences: maximum number of sequences.
        tokens: maximum number of tokens of all sequences.
        message_bytes: maximum size of the request message.
        attend_bytes: maximum size of the attention weights that one Attend request computes.
    """

    sequences: int
    tokens: int
    message_bytes: int
    attend_bytes: int

    @property
    def text_bytes(self) -> int:
        """The maximum size of all texts together, in bytes: 16 for each token, but at most a whole message."""
        return min(self.tokens * _TEXT_BYTES_PER_TOKEN, self.message_bytes)

    def message(self) -> pb.RequestLimits:
        """Return the limits as GetModel reports them."""
        return pb.RequestLimits(
            max_sequences=self.sequences,
            max_tokens=self.tokens,
            max_message_bytes=self.message_bytes,
            max_attend_bytes=self.attend_bytes,
            max_text_bytes=self.text_bytes,
        )


def parse(raw: bytes, message: _Message) -> _Message:
    """Fill a message from its bytes and return it.

    Raises:
        InvalidInput: the bytes are not a message of this type.
    """
    try:
        message.ParseFromString(raw)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise InvalidInput(f"the request is not a {name} message: check the client's .proto file") from None
    return message


def check_id(request_id: str) -> None:
    """Check that an id fits in a log line.

    Raises:
        InvalidInput: the id is too long, or has unprintable characters such as line ends.
    """
    if len(request_id) > _MAX_ID_CHARACTERS:
        raise InvalidInput(
            f"request_id has {len(request_id)} characters; the server accepts at most {_MAX_ID_CHARACTERS}: "
            "shorten the id",
            field="request_id",
        )
    if not request_id.isprintable():
        unprintable = next(character for character in request_id if not character.isprintable())
        raise InvalidInput(
            f"request_id has the unprintable character {unprintable!r}: use printable characters", field="request_id"
        )


def read_options(request: pb.EncodeRequest, manifest: Manifest) -> Output:
    """Check the options of an Encode request, and return the outputs of its reply.

    Raises:
        InvalidInput: an option is wrong, or does not fit the model or the input.
    """
    _check_options(request)
    return read_output(request.output, manifest)


def check_attend_request(request: pb.AttendRequest, manifest: Manifest) -> None:
    """Check that a model has attention weights, and that an Attend request has only one sequence.

    Raises:
        Unimplemented: the model's bundle has no graph of attention weights.
        InvalidInput: the request has several sequences.
    """
    check_supported(manifest)
    check_single(request)


def check_count(sequences: int, limits: RequestLimits) -> None:
    """Check the number of sequences of a request.

    Raises:
        InvalidInput: the request has no sequences, or too many.
    """
    if sequences == 0:
        raise InvalidInput("the request has no sequences: send at least one")
    if sequences > limits.sequences:
        raise InvalidInput(
            f"the request has {sequences} sequences; the server accepts at most {limits.sequences}: split the request",
            limit=limits.sequences,
            actual=sequences,
        )


def check_tokens(tokens: int, limits: RequestLimits) -> None:
    """Check the number of tokens of a request.

    Raises:
        InvalidInput: the request has too many tokens.
    """
    if tokens > limits.tokens:
        raise InvalidInput(
            f"the request has {tokens} tokens; the server accepts at most {limits.tokens}: split the request",
            limit=limits.tokens,
            actual=tokens,
        )


def check_text_bytes(size_bytes: int, field: str, limits: RequestLimits) -> None:
    """Check the size of all texts of a request together, in bytes.

    Raises:
        InvalidInput: the texts are too large.
    """
    if size_bytes > limits.text_bytes:
        raise InvalidInput(
            f"the request's texts have {size_bytes} bytes; the server accepts at most {limits.text_bytes}: split the "
            "request",
            field=field,
            limit=limits.text_bytes,
            actual=size_bytes,
        )


def _check_options(request: pb.EncodeRequest) -> None:
    """Check the options that do not depend on the model."""
    if request.priority not in _PRIORITIES:
        raise InvalidInput(f"priority {request.priority} is unknown: send INTERACTIVE or BULK", field="priority")
    if request.truncation not in _TRUNCATIONS:
        raise InvalidInput(f"truncation {request.truncation} is unknown: send ERROR, LEFT or RIGHT", field="truncation")
    if not 0 <= request.timeout_s < float("inf"):
        raise InvalidInput(
            f"timeout_s is {request.timeout_s:g}: send a finite number of seconds from now, or 0 to use the "
            "deadline of the call",
            field="timeout_s",
        )
    input_kind = request.WhichOneof("input")
    truncates = request.truncation in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT)
    for field, is_set, kinds in (
        ("truncation", truncates, ("tokens", "features")),
        ("output.offsets", request.output.offsets, ("tokens", "features", "pairs")),
    ):
        if is_set and input_kind in kinds:
            raise InvalidInput(
                f"{field} applies only to texts, and the request has {input_kind}: leave {field} out", field=field
            )
