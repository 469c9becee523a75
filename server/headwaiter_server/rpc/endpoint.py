"""What every method shares: a request id, a deadline, one log line and one count per outcome, errors as statuses."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import NoReturn, TypeAlias

import grpc
from grpc.aio import ServicerContext

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unimplemented,
)
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.status import DETAILS_KEY, code_of, status_of

log = logging.getLogger(__name__)

clock = time.monotonic

# A random number for every request would cost a system call each.
_PROCESS, _NUMBERS = uuid.uuid4().hex[:16], count(1)
# Calls come and go; nobody can tell when the next one goes.
_RETRY_AFTER_S = 1.0


@dataclass(eq=False, slots=True)
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
    request_id: str = field(default_factory=lambda: f"{_PROCESS}-{next(_NUMBERS)}")


Context: TypeAlias = "ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Handle = Callable[[bytes, Call], Awaitable[bytes]]
HandleStream = Callable[[AsyncIterator[bytes], "Context", Call], Awaitable[None]]


class Gate:
    """Lets in so many calls at a time, and refuses the others at once.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0

    def __enter__(self) -> None:
        """Let a call in.

        Raises:
            Overloaded: as many as there may be are inside.
        """
        if self._inside >= self._most:
            raise Overloaded(
                f"the server answers {self._most} calls at a time, and is at it: try again in {_RETRY_AFTER_S:g} s",
                retry_after_s=_RETRY_AFTER_S,
                limit=self._most,
            )
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        """Let it out."""
        self._inside -= 1


class Observed:
    """Logs and counts what becomes of a request; the metrics know before the caller does.

    Whatever goes wrong leaves it as a HeadwaiterError, or as the cancellation that it was.
    """

    def __init__(self, call: Call, recorder: Recorder) -> None:
        self._call = call
        self._recorder = recorder

    def __enter__(self) -> None:
        """Note that the request has come."""
        self._recorder.received()

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Note what became of it.

        Raises:
            HeadwaiterError: in place of an error that nobody foresaw.
        """
        call = self._call
        if error is None:
            self._recorder.finished(call.method, grpc.StatusCode.OK.name, clock() - call.arrived_s)
        elif isinstance(error, asyncio.CancelledError):
            # gRPC cancels the handler both when the caller goes away and when the deadline passes.
            late = clock() >= call.deadline_s
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            log.info("%s %s: %s", call.method, call.request_id, "deadline passed" if late else "caller went away")
            self._recorder.finished(call.method, code.name, clock() - call.arrived_s)
        elif isinstance(error, Exception):
            failure = _note(call, error, self._recorder)
            if failure is not error:
                raise failure from None


def unary(method: str, handle: Handle, recorder: Recorder, gate: AbstractContextManager[None]) -> Handler:
    """Make a gRPC handler of a function from bytes to bytes.

    The handler takes the raw message: gRPC itself would answer bytes that do not parse with UNKNOWN.
    """

    async def answer(raw: bytes, context: Context) -> bytes:
        call = _call(method, context)
        try:
            with Observed(call, recorder), gate:
                return await handle(raw, call)
        except HeadwaiterError as failure:
            return await _abort(context, call, failure)

    return grpc.unary_unary_rpc_method_handler(answer)


def stream(method: str, handle: HandleStream, recorder: Recorder, gate: AbstractContextManager[None]) -> Handler:
    """Make a gRPC handler of a function that reads and writes raw messages, and observes each request itself.

    A stream that ends in an error is counted as one request more.
    """

    async def answer(messages: AsyncIterator[bytes], context: Context) -> None:
        call = _call(method, context)
        try:
            with gate:
                await handle(messages, context, call)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status and the log a line
            recorder.received()
            await _abort(context, call, _note(call, error, recorder))

    return grpc.stream_stream_rpc_method_handler(answer)


def refusal(method: str, error: Callable[[], HeadwaiterError], recorder: Recorder) -> Handler:
    """Make a gRPC handler that refuses every call, unary or stream, before it reads a message."""

    async def refuse(*_: object) -> None:
        raise error()

    return stream(method, refuse, recorder, nullcontext())


def log_failures(call: Call, failures: Mapping[int, HeadwaiterError]) -> None:
    """Log what failed of a request that is answered all the same: in one line, as it may be thousands of sequences."""
    if failures:
        _, error = min(failures.items())
        what = f"{len(failures)} sequences failed, the first: {_with_cause(error)}"
        level = max(map(_level, failures.values()))
        log.log(level, "%s %s: %s: %s", call.method, call.request_id, type(error).__name__, what)


def _call(method: str, context: Context) -> Call:
    arrived_s = clock()
    remaining_s = context.time_remaining()
    return Call(method, arrived_s, float("inf") if remaining_s is None else arrived_s + remaining_s)


def _note(call: Call, error: Exception, recorder: Recorder) -> HeadwaiterError:
    """Log and count a failure, and return what the caller shall hear of it."""
    if isinstance(error, HeadwaiterError):
        failure = error
        log.log(_level(error), "%s %s: %s: %s", call.method, call.request_id, type(error).__name__, _with_cause(error))
        if not isinstance(error, InferenceFailed | DeadlineExceeded):
            recorder.refused(pb.ErrorReason.Name(error.reason))
    else:
        failure = HeadwaiterError("the server failed unexpectedly; its log says why")
        log.error("%s %s: unexpected failure", call.method, call.request_id, exc_info=error)
    recorder.finished(call.method, code_of(failure).name, clock() - call.arrived_s)
    return failure


async def _abort(context: Context, call: Call, failure: HeadwaiterError) -> NoReturn:
    """End a call with the status of what went wrong."""
    status = status_of(failure, call.request_id)
    await context.abort(code_of(failure), status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort raises")


def _level(error: HeadwaiterError) -> int:
    """Return how loudly to log an error: what callers do wrong is nothing an operator has to act on."""
    return logging.INFO if isinstance(error, InvalidInput | ModelNotFound | Unimplemented) else logging.WARNING


def _with_cause(error: HeadwaiterError) -> str:
    """Return the error's sentence in one line with what is behind it, which is for the log only."""
    cause = " ".join(str(error.__cause__).split())
    return f"{error} ({cause})" if error.__cause__ else str(error)
