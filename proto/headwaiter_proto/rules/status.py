"""Write an error to the wire, as the status of a call or as part of a reply, and read it back."""

from collections.abc import Mapping

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput

DOMAIN = "headwaiter"
# The trailing metadata that holds a google.rpc.Status, for gRPC clients of every language.
DETAILS_KEY = "grpc-status-details-bin"
# The metadata key of a retry. Its value is the number of attempts that failed with DEVICE_FAILED, in decimal.
DEVICE_FAILURES_KEY = "headwaiter-device-failures"

# The key of trailing metadata of health checks. The value is the number of processes that receive calls, in decimal.
# Each connection leads to one of these processes.
FRONT_ENDS_KEY = "headwaiter-front-ends"

# gRPC clients refuse trailers of more than 8 KiB, and the trailers hold a message three times: percent-encoded, in the
# status, and perhaps in a BadRequest.
_MAX_MESSAGE_BYTES = 1000
# The digits of the longest integer of 64 bits, with its sign. Python refuses to convert texts of 5,000 digits.
_MAX_DIGITS = 20

# The gRPC code and the HTTP status of each reason.
_CODES = {
    pb.INVALID_INPUT: (StatusCode.INVALID_ARGUMENT, 400),
    pb.SEQUENCE_TOO_LONG: (StatusCode.INVALID_ARGUMENT, 400),
    pb.MODEL_NOT_FOUND: (StatusCode.NOT_FOUND, 404),
    pb.OVERLOADED: (StatusCode.RESOURCE_EXHAUSTED, 429),
    pb.MESSAGE_TOO_LARGE: (StatusCode.RESOURCE_EXHAUSTED, 413),
    pb.DEADLINE_EXCEEDED: (StatusCode.DEADLINE_EXCEEDED, 504),
    pb.CANCELLED: (StatusCode.CANCELLED, 499),
    pb.UNAVAILABLE: (StatusCode.UNAVAILABLE, 503),
    pb.DEVICE_FAILED: (StatusCode.UNAVAILABLE, 503),
    pb.STARTING: (StatusCode.UNAVAILABLE, 503),
    pb.INFERENCE_FAILED: (StatusCode.INTERNAL, 500),
    pb.UNAUTHENTICATED: (StatusCode.UNAUTHENTICATED, 401),
    pb.UNIMPLEMENTED: (StatusCode.UNIMPLEMENTED, 501),
    pb.ERROR_REASON_UNSPECIFIED: (StatusCode.INTERNAL, 500),
}


def code_of(error: HeadwaiterError) -> StatusCode:
    """Return the gRPC code of an error."""
    return _CODES[error.reason][0]


def http_status_of(error: HeadwaiterError) -> int:
    """Return the HTTP status of an error."""
    return _CODES[error.reason][1]


def status_of(error: HeadwaiterError, request_id: str) -> Status:
    """Return the status of an error: its code, its message, and details that a program can read.

    The details are a google.rpc.ErrorInfo (reason, domain, metadata), a RequestInfo, a BadRequest that names the field
    for invalid input, and a RetryInfo if the error has a delay.
    """
    reason = pb.ErrorReason.Name(error.reason)
    message = _shortened(str(error))
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata_of(error)),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if isinstance(error, InvalidInput) and error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(max(1, round(error.retry_after_s * 1000)))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = Status(code=code_of(error).value[0], message=message)
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _shortened(message: str) -> str:
    raw = message.encode()
    if len(raw) <= _MAX_MESSAGE_BYTES:
        return message
    return raw[:_MAX_MESSAGE_BYTES].decode(errors="ignore") + " …"


def stream_error(error: HeadwaiterError) -> pb.StreamError:
    """Return the message for a failed request of a stream; the stream goes on."""
    return pb.StreamError(
        code=code_of(error).value[0],
        reason=error.reason,
        message=str(error),
        metadata=metadata_of(error),
        retry_after_s=error.retry_after_s or 0.0,
    )


def failure(sequence: int, error: HeadwaiterError) -> pb.Failure:
    """Return the message for a failed sequence of a partial reply."""
    return pb.Failure(sequence=sequence, reason=error.reason, message=str(error), metadata=metadata_of(error))


def error_from_metadata(
    kind: type[HeadwaiterError],
    message: str,
    metadata: Mapping[str, str],
    *,
    retry_after_s: float | None = None,
    request_id: str | None = None,
) -> HeadwaiterError:
    """Return an error of class `kind` that was read from the wire.

    The metadata may hold `sequence`, `field`, `limit` and `actual`. A message that does not begin with the sequence, as
    those of other servers, is quoted as a whole.
    """
    sequence = _integer(metadata.get("sequence"))
    if sequence is not None:
        problem = message.removeprefix(f"sequence {sequence} ")
        message = problem if problem != message else f"failed: {message}"
    return kind(
        message,
        sequence=sequence,
        field=metadata.get("field"),
        limit=_integer(metadata.get("limit")),
        actual=_integer(metadata.get("actual")),
        retry_after_s=retry_after_s,
        request_id=request_id,
    )


def metadata_of(error: HeadwaiterError) -> dict[str, str]:
    """Return the details of an error that programs read, with the keys that ErrorReason lists."""
    known = {"sequence": error.sequence, "field": error.field, "limit": error.limit, "actual": error.actual}
    return {name: str(value) for name, value in known.items() if value is not None}


def _integer(text: str | None) -> int | None:
    """Return the number in a text, or None if the text is no number of the contract: those have 64 bits."""
    if not text or len(text) > _MAX_DIGITS or not text.removeprefix("-").isdecimal():
        return None
    return int(text)
