"""Read the message of a request, and check everything in the message except its sequences."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.attend import check_single, check_supported
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.outputs import WantedOutput, read_output

_Message = TypeVar("_Message", bound=Message)

_PRIORITIES, _TRUNCATIONS = pb.Priority.values(), pb.Truncation.values()
_PRIORITY_NAMES = " or ".join(name.removeprefix("PRIORITY_") for name, number in pb.Priority.items() if number)
# Errors quote ids and names, and are sent in HTTP/2 headers of at most 8 KiB.
_MAX_ID_CHARACTERS = 256


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


def read_options(request: pb.EncodeRequest, manifest: Manifest) -> WantedOutput:
    """Check the options of an Encode request, and return the outputs of its reply.

    Raises:
        InvalidInput: an option is wrong, or does not fit the model or the input.
    """
    check_options(request)
    check_offsets(request, manifest, "output.offsets")
    return read_output(request.output, manifest)


def check_offsets(request: pb.EncodeRequest, manifest: Manifest, field: str) -> None:
    """Check that a model has offsets for the input, if a field of the request asks for them.

    Raises:
        InvalidInput: the input is pairs, and the model reads both texts of a pair as one.
    """
    if request.output.offsets and request.HasField("pairs") and manifest.HasField("pair_template"):
        raise InvalidInput(
            f"{field} is set, and the model puts both texts of a pair into one text: leave {field} out", field=field
        )


def check_attend_request(request: pb.AttendRequest, manifest: Manifest) -> None:
    """Check that a model has attention weights, and that an Attend request has only one sequence.

    Raises:
        Unimplemented: the model's bundle has no graph of attention weights.
        InvalidInput: the request has several sequences.
    """
    check_supported(manifest)
    check_single(request)


def check_options(request: pb.EncodeRequest) -> None:
    """Check the options that do not depend on the model.

    Raises:
        InvalidInput: an option is wrong, or does not fit the input.
    """
    if request.priority not in _PRIORITIES:
        raise InvalidInput(f"priority {request.priority} is unknown: send {_PRIORITY_NAMES}", field="priority")
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
    for field, is_set in (("truncation", truncates), ("output.offsets", request.output.offsets)):
        if is_set and input_kind in ("tokens", "features", "images"):
            raise InvalidInput(
                f"{field} applies only to texts and pairs, and the request has {input_kind}: leave {field} out",
                field=field,
            )
