"""The one place where an error becomes what the wire says of it: the status of a call, or a part of an answer."""

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import HeadwaiterError, InvalidInput, Overloaded

DOMAIN = "headwaiter"
# Where clients of every language look for a google.rpc.Status.
DETAILS_KEY = "grpc-status-details-bin"

_CODES = {
    pb.INVALID_INPUT: StatusCode.INVALID_ARGUMENT,
    pb.SEQUENCE_TOO_LONG: StatusCode.INVALID_ARGUMENT,
    pb.MODEL_NOT_FOUND: StatusCode.NOT_FOUND,
    pb.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    pb.MESSAGE_TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    pb.DEADLINE_EXCEEDED: StatusCode.DEADLINE_EXCEEDED,
    pb.CANCELLED: StatusCode.CANCELLED,
    pb.UNAVAILABLE: StatusCode.UNAVAILABLE,
    pb.INFERENCE_FAILED: StatusCode.INTERNAL,
    pb.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    pb.UNIMPLEMENTED: StatusCode.UNIMPLEMENTED,
    pb.ERROR_REASON_UNSPECIFIED: StatusCode.INTERNAL,
}


def code_of(error: HeadwaiterError) -> StatusCode:
    """Return the gRPC code of an error."""
    return _CODES[error.reason]


def status_of(error: HeadwaiterError, request_id: str) -> Status:
    """Return the status of an error: its code and sentence, and details that a program can read.

    Details are a google.rpc.ErrorInfo (reason, domain, metadata), a RequestInfo, for bad input a BadRequest that names
    the field, and for overload a RetryInfo.
    """
    reason = pb.ErrorReason.Name(error.reason)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=_metadata(error)),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if isinstance(error, InvalidInput) and error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=str(error))
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromMilliseconds(max(1, round(error.retry_after_s * 1000)))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = Status(code=code_of(error).value[0], message=str(error))
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def stream_error(error: HeadwaiterError) -> pb.StreamError:
    """Return what a stream says of an error, which ends one request and not the call."""
    return pb.StreamError(
        code=code_of(error).value[0],
        reason=error.reason,
        message=str(error),
        metadata=_metadata(error),
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else 0.0,
    )


def failure(sequence: int, error: HeadwaiterError) -> pb.Failure:
    """Return what a partial answer says of an error, which ends one sequence and not the request."""
    return pb.Failure(sequence=sequence, reason=error.reason, message=str(error), metadata=_metadata(error))


def _metadata(error: HeadwaiterError) -> dict[str, str]:
    known = {"sequence": error.sequence, "field": error.field, "limit": error.limit, "actual": error.actual}
    return {name: str(value) for name, value in known.items() if value is not None}
