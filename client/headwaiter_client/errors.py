"""What can go wrong with a call, as a tree; `from_rpc` finds the class for what gRPC raised.

HeadwaiterError
├── InvalidInput
│   └── SequenceTooLong
├── ModelNotFound
├── Overloaded
├── MessageTooLarge
├── DeadlineExceeded
├── Cancelled
├── Unavailable
├── InferenceFailed
├── Unauthenticated
├── Unimplemented
└── ModelChanged
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class HeadwaiterError(Exception):
    """A call failed; the message says what was wrong, where, and what would be right.

    A failure that none of the classes below names is of this one.

    Attributes:
        sequence: index of the sequence in the request, where one is to blame.
        field: path of the request's field, where one is to blame.
        limit: the limit that was exceeded.
        actual: what was found instead.
        retry_after_s: seconds after which the same call may succeed, where the server says so.
        request_id: what the server's log calls the request.
    """

    def __init__(
        self,
        message: str,
        *,
        sequence: int | None = None,
        field: str | None = None,
        limit: int | None = None,
        actual: int | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.field = field
        self.limit = limit
        self.actual = actual
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    def __repr__(self) -> str:
        known = "".join(f", {name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({str(self)!r}{known})"


class InvalidInput(HeadwaiterError):
    """The request cannot be served as it is."""


class SequenceTooLong(InvalidInput):
    """A sequence has more tokens than the model takes: `actual` over `limit`."""


class ModelNotFound(HeadwaiterError):
    """The server holds no model of that name."""


class Overloaded(HeadwaiterError):
    """The queue is full, or too long for the deadline; worth another try after `retry_after_s`."""


class MessageTooLarge(HeadwaiterError):
    """The request or the reply is over a size limit; never worth another try."""


class DeadlineExceeded(HeadwaiterError):
    """The deadline passed before the answer came."""


class Cancelled(HeadwaiterError):
    """The call was cancelled, or its client closed, before the answer came or before the call was made."""


class Unavailable(HeadwaiterError):
    """The server cannot be reached, is starting or is draining; another replica may answer."""


class InferenceFailed(HeadwaiterError):
    """The model failed on this input."""


class Unauthenticated(HeadwaiterError):
    """The call carries no bearer token, or a wrong one."""


class Unimplemented(HeadwaiterError):
    """The server does not offer the method."""


class ModelChanged(HeadwaiterError):
    """The requests of one call were answered by different weights, whose vectors must not be compared."""


# By the names of the contract's ErrorReason.
BY_REASON: dict[str, type[HeadwaiterError]] = {
    "INVALID_INPUT": InvalidInput,
    "SEQUENCE_TOO_LONG": SequenceTooLong,
    "MODEL_NOT_FOUND": ModelNotFound,
    "OVERLOADED": Overloaded,
    "MESSAGE_TOO_LARGE": MessageTooLarge,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "CANCELLED": Cancelled,
    "UNAVAILABLE": Unavailable,
    "INFERENCE_FAILED": InferenceFailed,
    "UNAUTHENTICATED": Unauthenticated,
    "UNIMPLEMENTED": Unimplemented,
}

# For what gRPC, a proxy or a newer server says without a reason we know. Not INTERNAL: gRPC says it of broken
# connections, and the server of its own faults, neither of which are the input's.
BY_CODE: dict[grpc.StatusCode, type[HeadwaiterError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: MessageTooLarge,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    # Nobody here cancelled: gRPC says it of calls that come to a server while it stops.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}

_DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.RequestInfo)


def from_rpc(error: grpc.RpcError, *, timeout_s: float, request_id: str | None) -> HeadwaiterError:
    """Finds the exception for the failure of a call.

    Args:
        error: what either kind of gRPC channel raised.
        timeout_s: the deadline the call was given.
        request_id: the id the request carried.
    """
    call = cast("grpc.Call", error)  # What channels raise is both.
    code, message = call.code(), call.details()
    details = _details(call)
    info, retry, request = (details.get(kind.DESCRIPTOR.full_name) for kind in _DETAILS)
    if info is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"no answer within {timeout_s:g} s"
    elif info is None and code is grpc.StatusCode.CANCELLED:
        message = "the server gave the call up; it may be stopping"
    reason = info.reason if info else ""
    kind = BY_REASON.get(reason) or BY_CODE.get(code, HeadwaiterError)
    if kind is MessageTooLarge and retry:
        kind = Overloaded
    message = message or code.name
    return from_metadata(
        kind,
        f"{code.name}: {message}" if kind is HeadwaiterError else message,
        info.metadata if info else {},
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
        # A server that refused the call before it read the request made up another id.
        request_id=request.request_id if request else request_id,
    )


def from_metadata(
    kind: type[HeadwaiterError],
    message: str,
    metadata: Mapping[str, str],
    *,
    retry_after_s: float | None = None,
    request_id: str | None = None,
) -> HeadwaiterError:
    """Makes an exception that says what the server knows of the place.

    Args:
        kind: its class.
        message: the server's sentence.
        metadata: may hold `sequence`, `field`, `limit` and `actual`.
        retry_after_s: seconds after which the server asks to be called again.
        request_id: the id the request carried.
    """
    return kind(
        message,
        sequence=_integer(metadata.get("sequence")),
        field=metadata.get("field"),
        limit=_integer(metadata.get("limit")),
        actual=_integer(metadata.get("actual")),
        retry_after_s=retry_after_s,
        request_id=request_id,
    )


def located(error: HeadwaiterError, first: int) -> HeadwaiterError:
    """Returns an error that counts sequences as the caller does, whose list the request began to send at `first`."""
    if error.sequence is None or not first:
        return error
    moved = copy(error)
    moved.sequence = error.sequence + first
    # What the server's sentence counts, the caller never saw.
    place = rf"(texts\.values\[|\bsequence )({error.sequence})(?!\d)"
    moved.args = (re.sub(place, lambda found: f"{found[1]}{moved.sequence}", str(error)),)
    return moved


def _details(call: grpc.Call) -> dict[str, Any]:
    """Returns those details of a call's google.rpc.Status that we know, by the name of their type."""
    kinds = {kind.DESCRIPTOR.full_name: kind for kind in _DETAILS}
    try:
        status = rpc_status.from_call(call)
        details = status.details if status else ()
        return {
            name: kinds[name].FromString(detail.value) for detail in details if (name := detail.TypeName()) in kinds
        }
    except (ValueError, DecodeError):  # Rewritten on the way: the code is all there is.
        return {}


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.removeprefix("-").isdecimal() else None
