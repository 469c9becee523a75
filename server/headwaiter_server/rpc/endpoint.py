"""The part that all methods share: request ids, deadlines, log lines, metrics, and errors as gRPC statuses."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import NoReturn, TypeAlias

import grpc
from grpc.aio import ServicerContext

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from headwaiter_proto.rules.status import DETAILS_KEY, DEVICE_FAILURES_KEY, code_of, status_of
from headwaiter_server.log_lines import FEW_LINES_PER_S, line_kind
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.shares import CallLimit
from headwaiter_server.runtime.errors import one_line

log = logging.getLogger(__name__)

clock = time.monotonic

# One random number per process, because a random number per request would cost a system call per request.
_PROCESS_ID, _REQUEST_NUMBERS = uuid.uuid4().hex[:16], count(1)
# The numbers of failed attempts that a caller may send.
_DEVICE_FAILURES = frozenset(map(str, range(100)))
# These end a task on purpose. All other exceptions are failures, also those that are no Exception: a panic of the
# tokenizer's Rust code is a BaseException.
_NO_FAILURES = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


@dataclass(eq=False, slots=True)
class Call:
    """A request that is being answered.

    Attributes:
        method: name of the gRPC method.
        arrived_s: time of arrival, on `clock`.
        deadline_s: deadline of the gRPC call, on `clock`; infinity without a deadline.
        connection: names the connection of the call.
        device_failures: how often the caller's earlier attempts failed because a device died.
        started_s: when the server started to read the request, on `clock`; after the arrival if it had to wait.
        queued: whether the request has entered a queue; an error after that is no refusal.
        model: name and version of the model; empty strings until the model is found.
        request_id: the id in the request; a generated id until the request is parsed, and for a request without an id.
        held: gives back the call's shares of the server's limits; closed when gRPC has sent the reply.
    """

    method: str
    arrived_s: float
    deadline_s: float
    connection: str = ""
    device_failures: int = 0
    started_s: float = 0.0
    queued: bool = False
    model: tuple[str, str] = ("", "")
    request_id: str = field(default_factory=lambda: f"{_PROCESS_ID}-{next(_REQUEST_NUMBERS)}")
    held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.started_s = self.arrived_s

    def note_queued(self) -> None:
        """Record that the request has entered a queue."""
        self.queued = True


Context: TypeAlias = "ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Handle = Callable[[bytes, Call], Awaitable[bytes]]
HandleStream = Callable[[AsyncIterator[bytes], "Context", Call], Awaitable[None]]


class OutcomeRecorder:
    """Logs and counts the outcome of a request before the caller receives the outcome.

    Every failure leaves the block as a HeadwaiterError; a cancellation leaves the block unchanged.
    """

    def __init__(self, call: Call, recorder: Recorder) -> None:
        self._call = call
        self._recorder = recorder

    def __enter__(self) -> None:
        """Count the arrival of the request."""
        self._recorder.received()

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Log and count the outcome.

        Raises:
            HeadwaiterError: replaces an unexpected exception.
        """
        call = self._call
        if error is None:
            self._recorder.finished(call.model, call.method, grpc.StatusCode.OK.name, clock() - call.arrived_s)
        elif isinstance(error, asyncio.CancelledError):
            # gRPC cancels the handler both when the caller cancels and when the deadline passes.
            late = clock() >= call.deadline_s
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            event = "the deadline passed" if late else "the caller cancelled"
            log.info("%s %s: %s", call.method, call.request_id, event, extra=line_kind(f"{call.method}: {event}"))
            self._recorder.finished(call.model, call.method, code.name, clock() - call.arrived_s)
        elif not isinstance(error, _NO_FAILURES):
            reported = _record_failure(call, error, self._recorder)
            if reported is not error:
                raise reported from None


def unary_handler(method: str, handle: Handle, recorder: Recorder, limit: CallLimit) -> Handler:
    """Return a gRPC handler that calls a function from bytes to bytes.

    The handler takes raw messages, because gRPC itself would answer an unreadable message with UNKNOWN.
    """

    async def answer(raw: bytes, context: Context) -> bytes:
        call = _new_call(method, context)
        try:
            with OutcomeRecorder(call, recorder):
                limit.hold(call.connection, call.held)
                return await handle(raw, call)
        except HeadwaiterError as error:
            return await _abort(context, call, error)

    return grpc.unary_unary_rpc_method_handler(answer)


def stream_handler(method: str, handle: HandleStream, recorder: Recorder, limit: CallLimit | None) -> Handler:
    """Return a gRPC handler that calls a function which reads and writes raw messages.

    The function records the outcome of each request. A stream that ends in an error counts as one more request.
    """

    async def answer(messages: AsyncIterator[bytes], context: Context) -> None:
        call = _new_call(method, context)
        try:
            if limit is not None:
                limit.hold(call.connection, call.held)
            await handle(messages, context, call)
        except _NO_FAILURES:
            raise
        except BaseException as error:  # noqa: BLE001 - every failure becomes a status and a log line
            recorder.received()
            await _abort(context, call, _record_failure(call, error, recorder))

    return grpc.stream_stream_rpc_method_handler(answer)


def refusing_handler(method: str, error: Callable[[], HeadwaiterError], recorder: Recorder) -> Handler:
    """Return a gRPC handler that refuses every call, unary or stream, before it reads a message."""

    async def refuse(*_: object) -> None:
        raise error()

    return stream_handler(method, refuse, recorder, None)


def log_failures(call: Call, failures: Mapping[int, HeadwaiterError]) -> None:
    """Log the failed sequences of a partial request in a single line, because there may be thousands."""
    if failures:
        _, first = min(failures.items())
        message = f"{len(failures)} sequences failed, the first: {_with_cause(first)}"
        level = max(map(_log_level, failures.values()))
        kind = line_kind(f"{call.method}: failed sequences, {type(first).__name__}")
        log.log(level, "%s %s: %s: %s", call.method, call.request_id, type(first).__name__, message, extra=kind)


def _new_call(method: str, context: Context) -> Call:
    arrived_s = clock()
    remaining_s = context.time_remaining()
    deadline_s = float("inf") if remaining_s is None else arrived_s + remaining_s
    call = Call(method, arrived_s, deadline_s, context.peer(), _read_device_failures(context))

    def let_go(_: object) -> None:
        call.held.close()

    # gRPC calls back when its transport has accepted the reply or the caller has gone, not when the handler returns.
    context.add_done_callback(let_go)  # type: ignore[arg-type]
    return call


def _read_device_failures(context: Context) -> int:
    """Return the number of device failures in the call's metadata; 0 if it is missing or not a number from 0 to 99."""
    for key, value in context.invocation_metadata() or ():
        if key == DEVICE_FAILURES_KEY:
            return int(value) if str(value) in _DEVICE_FAILURES else 0
    return 0


def _record_failure(call: Call, error: BaseException, recorder: Recorder) -> HeadwaiterError:
    """Log and count a failure, and return the error to report to the caller."""
    if isinstance(error, HeadwaiterError):
        reported = error
        log.log(
            _log_level(error),
            "%s %s: %s: %s",
            call.method,
            call.request_id,
            type(error).__name__,
            _with_cause(error),
            extra=line_kind(
                f"{call.method}: {type(error).__name__}",
                lines_per_s=1 if isinstance(error, Overloaded | Unavailable | Unauthenticated) else FEW_LINES_PER_S,
            ),
        )
        if not call.queued and not isinstance(error, DeadlineExceeded):
            recorder.refused(pb.ErrorReason.Name(error.reason))
    else:
        reported = HeadwaiterError("the server failed unexpectedly: look for the request's id in the server's log")
        kind = line_kind(f"{call.method}: unexpected failure, {type(error).__name__}")
        log.error("%s %s: unexpected failure", call.method, call.request_id, exc_info=error, extra=kind)
    recorder.finished(call.model, call.method, code_of(reported).name, clock() - call.arrived_s)
    return reported


async def _abort(context: Context, call: Call, error: HeadwaiterError) -> NoReturn:
    """End a call with the status of an error."""
    status = status_of(error, call.request_id)
    await context.abort(code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort raises")


def _log_level(error: HeadwaiterError) -> int:
    """Return the log level of an error: INFO for mistakes of the caller, WARNING for all other errors."""
    return logging.INFO if isinstance(error, InvalidInput | ModelNotFound | Unimplemented) else logging.WARNING


def _with_cause(error: HeadwaiterError) -> str:
    """Return an error's message and its cause in one line; callers do not see the cause."""
    cause = one_line(error.__cause__)
    return f"{error} ({cause})" if error.__cause__ else str(error)
