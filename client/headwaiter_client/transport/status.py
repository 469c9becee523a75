"""Turn the status of a failed gRPC call into an exception.

A Headwaiter server sends error details with every refusal, and only these details decide what a refusal means. A status
without details comes from gRPC itself, from a proxy or from another server. Its code alone then decides; a code that
may have several causes gives the most general exception.
"""

from textwrap import shorten
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headwaiter_client.calls.steps import no_answer
from headwaiter_proto.rules.errors import (
    ERROR_BY_REASON,
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from headwaiter_proto.rules.status import DOMAIN, error_from_metadata

# The class of a failure without a server's details, or with a reason that this client does not know yet. INTERNAL is
# not InferenceFailed, because the server uses INTERNAL for its own faults too. gRPC turns the HTTP errors of proxies
# into codes: 429, 502, 503 and 504 into UNAVAILABLE, 401 into UNAUTHENTICATED, 403 into PERMISSION_DENIED, 404 into
# UNIMPLEMENTED, 400 into INTERNAL, all others into UNKNOWN.
_ERROR_BY_CODE: dict[grpc.StatusCode, type[HeadwaiterError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Unauthenticated,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}
# What the caller can do about a failure without a server's details.
_CHECK_ADDRESS = "check that the address is that of a Headwaiter server"
_ADVICE: dict[type[HeadwaiterError], str] = {
    Overloaded: "a proxy may limit the calls; send fewer at once",
    Unavailable: "check the address, tls, and that the server runs",
    Unauthenticated: "check the credentials that the proxy in front of the server requires",
    Unimplemented: f"{_CHECK_ADDRESS} of the same version as the client",
}
_MAX_QUOTED_CHARACTERS = 300
# The longest delay of google.protobuf.Duration: about 10,000 years.
_MAX_DELAY_S = 315_576_000_000

_DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.RequestInfo)


def error_from_rpc(error: grpc.RpcError, *, timeout_s: float, request_id: str | None) -> HeadwaiterError:
    """Return the exception for the error that a gRPC channel (blocking or asyncio) raised for a failed call."""
    call = cast("grpc.Call", error)  # The exceptions of channels are also of this type.
    code, text = call.code(), call.details() or ""
    details = _known_details(call)
    info, retry, request = (details.get(kind.DESCRIPTOR.full_name) for kind in _DETAILS)
    if info is None or info.domain != DOMAIN:
        kind, message = _without_details(code, text, timeout_s)
        metadata = {}
    else:
        kind = ERROR_BY_REASON.get(info.reason) or _ERROR_BY_CODE.get(code, HeadwaiterError)
        message = f"{code.name}: {text}" if kind is HeadwaiterError else text or code.name
        metadata = info.metadata
    return error_from_metadata(
        kind,
        message,
        metadata,
        retry_after_s=_retry_after_s(retry) if retry else None,
        # A server that refuses a call before it reads the request generates another id.
        request_id=request.request_id if request else request_id,
    )


def _retry_after_s(retry: error_details_pb2.RetryInfo) -> float | None:
    """Return the delay that a server asks for, or None if the delay is none that protobuf allows."""
    seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return seconds if 0 <= seconds <= _MAX_DELAY_S else None


def _without_details(code: grpc.StatusCode, text: str, timeout_s: float) -> tuple[type[HeadwaiterError], str]:
    """Return the class and the message of a failure that no Headwaiter server explained."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded, no_answer(timeout_s)
    if code is grpc.StatusCode.CANCELLED:
        # This is not a caller's cancellation, which never gets here: gRPC ends calls this way when the server stops, or
        # when calls arrive faster than the server can begin them.
        return Unavailable, (
            "the server ended the call without an answer: it may be shutting down, or get more calls than it can "
            "begin; send the request again, or fewer at once"
        )
    kind = _ERROR_BY_CODE.get(code, HeadwaiterError)
    # gRPC lists each failed attempt to connect; the last one is enough.
    cause = shorten(text.rpartition("last error: ")[2], _MAX_QUOTED_CHARACTERS, placeholder=" …")
    facts = f"{code.name}: {cause}" if cause else code.name
    return kind, f"no Headwaiter server answered ({facts}): {_ADVICE.get(kind, _CHECK_ADDRESS)}"


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
