"""What both clients share, without any I/O: each call as a generator that yields steps and is sent their outcomes."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from headwaiter_client.calls import attention_weights as _attention
from headwaiter_client.calls import options as _options
from headwaiter_client.calls import results as _results
from headwaiter_client.errors import DeadlineExceeded, HeadwaiterError, Unavailable
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

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# A server that does not answer this soon is not ready.
_HEALTH_TIMEOUT_S = 5.0

_Result = TypeVar("_Result")
_Reply = TypeVar("_Reply", bound=Message)


@dataclass(frozen=True)
class Call:
    """A step: make this call, then send its reply in, or throw its `HeadwaiterError` in."""

    method: str
    request: bytes
    timeout_s: float
    request_id: str | None = None


@dataclass(frozen=True)
class Pause:
    """A step: let so much time pass, then send anything in."""

    pause_s: float


Exchange: TypeAlias = Generator[Call | Pause, bytes | None, _Result]


def unary(
    method: str, request: Message, kind: type[_Reply], timeout_s: float, request_id: str | None = None
) -> Exchange[_Reply]:
    """Makes one call of the contract's.

    Raises:
        HeadwaiterError: it failed, or the reply is no such message.
    """
    raw = yield Call(METHODS[method], request.SerializeToString(), timeout_s, request_id)
    try:
        return kind.FromString(raw or b"")
    except DecodeError as error:
        raise HeadwaiterError(
            "INTERNAL: the reply is not the message the contract names", request_id=request_id
        ) from error


def attend(request: pb.AttendRequest, timeout_s: float) -> Exchange[_attention.Attention]:
    """See `Client.attend`."""
    started_s = time.perf_counter()
    response = yield from unary("Attend", request, pb.AttendResponse, timeout_s, request.request_id)
    return _attention.attention(response, round_trip_s=time.perf_counter() - started_s)


def models(timeout_s: float) -> Exchange[list[_results.ModelRef]]:
    """See `Client.models`."""
    response = yield from unary("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse, timeout_s)
    return [_results.model_ref(model) for model in response.models]


def model(name: str, timeout_s: float) -> Exchange[pb.GetModelResponse]:
    """See `Client.model`."""
    request = pb.GetModelRequest(name=_options.checked_text("name", name))
    return (yield from unary("GetModel", request, pb.GetModelResponse, timeout_s))


def is_serving(timeout_s: float) -> Exchange[bool]:
    """See `Client.is_serving`."""
    return (yield from unready(timeout_s)) is None


def unready(timeout_s: float) -> Exchange[str | None]:
    """Asks why the server takes no requests; None when it does.

    Raises:
        HeadwaiterError: it can be reached, but does not say.
    """
    try:
        raw = yield Call(HEALTH_METHOD, HEALTH_REQUEST, timeout_s)
    except Unavailable as error:
        return str(error)
    return None if raw == HEALTH_SERVING else "it does not take requests"


def wait_ready(timeout_s: float) -> Exchange[None]:
    """See `Client.wait_ready`."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    reason: str | None = "the time was up before it was asked"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            reason = yield from unready(min(left_s, _HEALTH_TIMEOUT_S))
            if reason is None:
                return
        except DeadlineExceeded as error:
            reason = str(error)
        yield Pause(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise DeadlineExceeded(f"the server was not ready within {timeout_s:g} s: {reason}")
