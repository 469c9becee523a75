"""Calls as generators of steps, without I/O, shared by both clients.

A call is a generator that yields steps, each a `Call` or a `Pause`. The client takes each step and sends the outcome
back into the generator, until the generator returns the call's result. `Client` takes a step by blocking a thread,
`AsyncClient` by awaiting.
"""

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from headwaiter_client.calls.attend import Attention, read_attention
from headwaiter_client.calls.batches import Batch, read_batches
from headwaiter_client.calls.models import ModelRef, ModelVersion, model_ref, read_versions
from headwaiter_client.calls.options import checked_text
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, Unavailable

# The gRPC path of each method of the contract, by the method's name.
METHODS = {
    method.name: f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

# Loading takes long, because the server reads, checks and measures a model before the model answers.
LOAD_TIMEOUT_S = 600.0

# The two messages of the standard health service, as bytes: importing grpc_health would add a dependency.
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = b""  # The empty service name stands for the whole server.
HEALTH_SERVING = b"\x08\x01"  # status: SERVING

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# The longest wait of `wait_ready` for the answer to one health check.
_HEALTH_TIMEOUT_S = 5.0

# The longest work between two steps of a call, about; an event loop does nothing else during it.
LONGEST_SLICE_S = 0.005

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")
_Reply = TypeVar("_Reply", bound=Message)


@dataclass(slots=True)  # Not frozen: a frozen object takes three times as long to make.
class Call:
    """A step: make a gRPC call, then send what `read` returns or throw the `HeadwaiterError` into the generator.

    Attributes:
        method: the gRPC path.
        request: the serialized request.
        timeout_s: seconds until the deadline.
        request_id: the request's id, for errors.
        reply_class: class of the reply; None if the generator expects the reply's bytes.
    """

    method: str
    request: bytes
    timeout_s: float
    request_id: str | None = None
    reply_class: type[Message] | None = None

    def read(self, reply: bytes) -> Message | bytes:
        """Return a reply as the generator expects it; the caller should hold no reference to the bytes, to free them.

        Raises:
            HeadwaiterError: the reply is not the contract's message.
        """
        if self.reply_class is None:
            return reply
        try:
            return self.reply_class.FromString(reply)
        except DecodeError as error:
            raise HeadwaiterError(
                f"INTERNAL: the reply to {self.method.rpartition('/')[2]} is not of type {self.reply_class.__name__}: "
                "check that the address is that of a Headwaiter server of the same version as the client",
                request_id=self.request_id,
            ) from error


@dataclass(frozen=True)
class Pause:
    """A step: wait for `pause_s` seconds, then resume the generator with any outcome, which the generator ignores.

    A pause of 0 seconds lets other tasks run.
    """

    pause_s: float


# What the generator gets for a step. `Call.read` gives messages of the class that the generator has named.
Outcome: TypeAlias = Message | bytes | None
Steps: TypeAlias = Generator[Call | Pause, Any, _Result]


def no_answer(timeout_s: float) -> str:
    """Return the message of a call without an answer before its deadline."""
    return f"no answer within {timeout_s:g} s: set a longer timeout_s"


def call_method(
    method: str,
    request: Message,
    reply_class: type[_Reply],
    timeout_s: float,
    request_id: str | None = None,
    caller_timeout_s: float | None = None,
) -> Steps[_Reply]:
    """Call a method of the contract.

    Args:
        method: name of the method.
        request: the request.
        reply_class: class of the reply.
        timeout_s: seconds until the deadline.
        request_id: the request's id, for errors.
        caller_timeout_s: the timeout that the caller has set, for messages, if a part of it is used up.

    Raises:
        HeadwaiterError: the call failed, or the reply is not the contract's message.
    """
    try:
        reply: _Reply = yield Call(METHODS[method], request.SerializeToString(), timeout_s, request_id, reply_class)
        return reply
    except DeadlineExceeded as error:
        if caller_timeout_s is None or str(error) != no_answer(timeout_s):
            raise
        raise DeadlineExceeded(no_answer(caller_timeout_s), request_id=error.request_id) from error.__cause__


def attend(request: pb.AttendRequest, timeout_s: float) -> Steps[Attention]:
    """See `Client.attend`."""
    started_s = time.perf_counter()
    response = yield from call_method("Attend", request, pb.AttendResponse, timeout_s, request.request_id)
    return read_attention(response, round_trip_s=time.perf_counter() - started_s)


def models(timeout_s: float) -> Steps[list[ModelVersion]]:
    """See `Client.models`."""
    response = yield from call_method("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse, timeout_s)
    return read_versions(response)


def batches(model: str, timeout_s: float) -> Steps[list[Batch]]:
    """See `Client.batches`."""
    request = pb.ListBatchesRequest(model=checked_text("model", model))
    return read_batches((yield from call_method("ListBatches", request, pb.ListBatchesResponse, timeout_s)))


def load(name: str, timeout_s: float) -> Steps[ModelRef]:
    """See `Client.load`."""
    request = pb.LoadModelRequest(name=checked_text("name", name))
    response = yield from call_method("LoadModel", request, pb.LoadModelResponse, timeout_s)
    return model_ref(response.model)


def unload(name: str, timeout_s: float) -> Steps[None]:
    """See `Client.unload`."""
    request = pb.UnloadModelRequest(name=checked_text("name", name))
    yield from call_method("UnloadModel", request, pb.UnloadModelResponse, timeout_s)


def model(
    name: str, version: str, timeout_s: float, caller_timeout_s: float | None = None
) -> Steps[pb.GetModelResponse]:
    """See `Client.model`; `caller_timeout_s` as in `call_method`."""
    request = pb.GetModelRequest(name=checked_text("name", name), version=checked_text("version", version))
    return (
        yield from call_method("GetModel", request, pb.GetModelResponse, timeout_s, caller_timeout_s=caller_timeout_s)
    )


def is_serving(timeout_s: float) -> Steps[bool]:
    """See `Client.is_serving`."""
    try:
        return (yield from not_ready_reason(timeout_s)) is None
    except DeadlineExceeded:
        return False


def not_ready_reason(timeout_s: float) -> Steps[str | None]:
    """Return why the server does not accept requests; None if the server accepts requests.

    Raises:
        HeadwaiterError: the server was reached, but the health check failed.
    """
    try:
        reply = yield Call(HEALTH_METHOD, HEALTH_REQUEST, timeout_s)
    except Unavailable as error:
        return str(error)
    return None if reply == HEALTH_SERVING else "its health check does not answer SERVING"


def wait_ready(timeout_s: float) -> Steps[None]:
    """See `Client.wait_ready`."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    reason: str | None = "no time was left for a health check"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            reason = yield from not_ready_reason(min(left_s, _HEALTH_TIMEOUT_S))
            if reason is None:
                return
        except DeadlineExceeded as error:
            reason = str(error)
        yield Pause(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise DeadlineExceeded(
        f"the server was not ready within {timeout_s:g} s ({reason}): set a longer timeout_s, or read the server's log"
    )


def run_steps(steps: Generator[_Step, Any, _Result], take: Callable[[_Step], object]) -> _Result:
    """Take each step, give the generator the outcome or the `HeadwaiterError` of the step, and return its result."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = take(step)
                except HeadwaiterError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: _Result = end.value
            return result


async def run_steps_async(steps: Generator[_Step, Any, _Result], take: Callable[[_Step], Awaitable[object]]) -> _Result:
    """Do what `run_steps` does, and await each step."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await take(step)
                except HeadwaiterError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: _Result = end.value
            return result
