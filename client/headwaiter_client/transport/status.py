"""Turn the status of a failed gRPC call into an exception."""

from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headwaiter_client.errors import (
    ERROR_BY_REASON,
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    MessageTooLarge,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from headwaiter_proto.rules.status import error_from_metadata

# The class of a failure without a known reason, from gRPC itself, a proxy or a newer server. INTERNAL is not
# InferenceFailed here, because gRPC uses INTERNAL for broken connections, and the server for its own faults.
_ERROR_BY_CODE: dict[grpc.StatusCode, type[HeadwaiterError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: MessageTooLarge,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    # Never a cancellation by the caller: gRPC also ends calls with CANCELLED if the server is stopping.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}

_DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.RequestInfo)


def error_from_rpc(error: grpc.RpcError, *, timeout_s: float, request_id: str | None) -> HeadwaiterError:
    """Return the exception for a failed call, from the error that a gRPC channel raised, blocking or asyncio."""
    call = cast("grpc.Call", error)  # The exceptions of channels are also of this type.
    code, message = call.code(), call.details()
    details = _known_details(call)
    info, retry, request = (details.get(kind.DESCRIPTOR.full_name) for kind in _DETAILS)
    if info is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"no answer within {timeout_s:g} s"
    elif info is None and code is grpc.StatusCode.CANCELLED:
        message = "the server ended the call without an answer: it may be shutting down"
    reason = info.reason if info else ""
    kind = ERROR_BY_REASON.get(reason) or _ERROR_BY_CODE.get(code, HeadwaiterError)
    if kind is MessageTooLarge and retry:
        kind = Overloaded
    message = message or code.name
    return error_from_metadata(
        kind,
        f"{code.name}: {message}" if kind is HeadwaiterError else message,
        info.metadata if info else {},
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
        # A server that refuses a call before it reads the request generates another id.
        request_id=request.request_id if request else request_id,
    )


def _known_details(call: grpc.Call) -> dict[str, Any]:
    """Return the known details of a call's google.rpc.Status, by the name of their type."""
    kinds = {kind.DESCRIPTOR.full_name: kind for kind in _DETAILS}
    try:
        status = rpc_status.from_call(call)
        details = status.details if status else ()
        return {
            name: kinds[name].FromString(detail.value) for detail in details if (name := detail.TypeName()) in kinds
        }
    except (ValueError, DecodeError):  # A proxy rewrote the status, so only the code is left.
        return {}
