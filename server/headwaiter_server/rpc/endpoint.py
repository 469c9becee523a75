"""What every method shares: a request id, a deadline, one log line and one count per outcome, errors as statuses."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import grpc
from grpc.aio import ServicerContext

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import DeadlineExceeded, HeadwaiterError, InferenceFailed
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.status import DETAILS_KEY, code_of, status_of

log = logging.getLogger(__name__)

clock = time.monotonic


@dataclass
class Call:
    """One request being answered.

    Attributes:
        method: name of the gRPC method.
        arrived_s: when it came, on `clock`.
        deadline_s: when its caller stops waiting, on `clock`; infinity without a deadline.
        request_id: the caller's, once it is parsed; until then, one made up.
    """

    method: str
    arrived_s: float
    deadline_s: float
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)


Handle = Callable[[bytes, Call], Awaitable[bytes]]


def unary(method: str, handle: Handle, recorder: Recorder) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Make a gRPC handler of a function from bytes to bytes.

    The handler takes the raw message: gRPC itself would answer bytes that do not parse with UNKNOWN.
    """

    async def answer(raw: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
        return await _settle(method, context, recorder, lambda call: handle(raw, call))

    return grpc.unary_unary_rpc_method_handler(answer)


def refusal(
    method: str, error: Callable[[], HeadwaiterError], recorder: Recorder
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Make a gRPC handler that refuses every call, unary or stream, before it reads a message."""

    async def refuse(_: Call) -> bytes:
        raise error()

    async def answer(_: object, context: "ServicerContext[bytes, bytes]") -> None:
        await _settle(method, context, recorder, refuse)

    return grpc.stream_stream_rpc_method_handler(answer)


def log_failures(call: Call, failures: Mapping[int, HeadwaiterError]) -> None:
    """Log what failed of a request that is answered all the same: in one line, as it may be thousands of sequences."""
    if failures:
        _, error = min(failures.items())
        what = f"{len(failures)} sequences failed, the first: {_with_cause(error)}"
        log.warning("%s %s: %s: %s", call.method, call.request_id, type(error).__name__, what)


async def _settle(
    method: str,
    context: "ServicerContext[bytes, bytes]",
    recorder: Recorder,
    handle: Callable[[Call], Awaitable[bytes]],
) -> bytes:
    """Return the reply, or abort with the status of what went wrong; the metrics know before the caller does."""
    arrived_s = clock()
    remaining_s = context.time_remaining()
    call = Call(method, arrived_s, float("inf") if remaining_s is None else arrived_s + remaining_s)
    recorder.received()
    try:
        reply = await handle(call)
    except HeadwaiterError as error:
        failure = error
        log.warning("%s %s: %s: %s", call.method, call.request_id, type(error).__name__, _with_cause(error))
        if not isinstance(error, InferenceFailed | DeadlineExceeded):
            recorder.refused(pb.ErrorReason.Name(error.reason))
    except asyncio.CancelledError:
        # gRPC cancels the handler both when the caller goes away and when the deadline passes.
        late = clock() >= call.deadline_s
        code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        log.info("%s %s: %s", call.method, call.request_id, "deadline passed" if late else "caller went away")
        recorder.finished(method, code.name, clock() - arrived_s)
        raise
    except Exception:
        log.exception("%s %s: unexpected failure", call.method, call.request_id)
        failure = HeadwaiterError("the server failed unexpectedly; its log says why")
    else:
        recorder.finished(method, grpc.StatusCode.OK.name, clock() - arrived_s)
        return reply
    recorder.finished(method, code_of(failure).name, clock() - arrived_s)
    status = status_of(failure, call.request_id)
    await context.abort(code_of(failure), status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort raises")


def _with_cause(error: HeadwaiterError) -> str:
    """Return the error's sentence in one line with what is behind it, which is for the log only."""
    cause = " ".join(str(error.__cause__).split())
    return f"{error} ({cause})" if error.__cause__ else str(error)
