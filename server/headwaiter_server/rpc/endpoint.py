"""The part that all gRPC methods share: deadlines, log lines, metrics, and errors as gRPC statuses."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServicerContext

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.status import DETAILS_KEY, DEVICE_FAILURES_KEY, code_of, status_of
from headwaiter_server.concurrency.stragglers import Stragglers
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import (
    NO_FAILURES,
    Call,
    OutcomeRecorder,
    clock,
    record_arrival,
    record_failure,
)
from headwaiter_server.requests.shares import CallLimit
from headwaiter_server.rpc.aio_memory import end_with_error
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.settings.tenants import UNNAMED

# A caller that has not taken a reply after this time loses the reply; a stream ends (`rpc/stream.py`).
DELIVERY_S = 60.0
# The numbers of failed attempts that a caller may send.
_DEVICE_FAILURES = frozenset(map(str, range(100)))

# The tenant whose token a call carries, set before the call is handled; each call has a context of its own.
TENANT = ContextVar("tenant", default=UNNAMED)

Context: TypeAlias = "ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Handle = Callable[[bytes, Call], Awaitable[bytes]]
HandleStream = Callable[["Context", Call], Awaitable[None]]


class UnaryCalls:
    """Answers calls of one message, and drops replies that callers do not take.

    Args:
        recorder: counts and times the calls.
        limit: limits the calls in progress.
        incoming: reads the messages of the calls.
    """

    def __init__(self, recorder: Recorder, limit: CallLimit, incoming: IncomingMessages) -> None:
        self._recorder, self._limit, self._incoming = recorder, limit, incoming
        # The tasks in which gRPC waits until its transport accepts a reply.
        self._delivering = Stragglers["asyncio.Task[Any]"](DELIVERY_S, _cancel)

    def handler(self, method: str, handle: Handle) -> Handler:
        """Return a gRPC handler that calls a function from bytes to bytes.

        The handler takes raw messages, because gRPC itself would answer an unreadable message with UNKNOWN. To gRPC it
        is a stream of requests, because gRPC reads the message of any other call before the handler can refuse it.
        """

        async def answer(_: object, context: Context) -> bytes:
            call = _new_call(method, context)
            try:
                with OutcomeRecorder(call, self._recorder):
                    self._limit.hold(call.holder, call.held)
                    reply = await handle(await self._incoming.read(context, call.connection), call)
            except HeadwaiterError as error:
                await _end_with_error(context, call, error)
                return b""
            task = asyncio.current_task()
            assert task is not None
            self._delivering.add(task)
            call.held.callback(self._delivering.discard, task)
            return reply

        return grpc.stream_unary_rpc_method_handler(answer)


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()


def stream_handler(method: str, handle: HandleStream, recorder: Recorder, limit: CallLimit | None) -> Handler:
    """Return a gRPC handler that calls a function which reads and writes raw messages.

    The function records the outcome of each request. A stream that ends in an error counts as one more request.
    """

    async def answer(_: object, context: Context) -> None:
        call = _new_call(method, context)
        try:
            if limit is not None:
                limit.hold(call.holder, call.held)
            await handle(context, call)
        except NO_FAILURES:
            raise
        except BaseException as error:  # noqa: BLE001 - every failure becomes a status and a log line
            record_arrival(call, recorder)
            await _end_with_error(context, call, record_failure(call, error, recorder))

    return grpc.stream_stream_rpc_method_handler(answer)


def refusing_handler(method: str, error: Callable[[], HeadwaiterError], recorder: Recorder) -> Handler:
    """Return a gRPC handler that refuses every call, unary or stream, before it reads a message."""

    async def refuse(*_: object) -> None:
        raise error()

    return stream_handler(method, refuse, recorder, None)


def _new_call(method: str, context: Context) -> Call:
    arrived_s = clock()
    remaining_s = context.time_remaining()
    deadline_s = float("inf") if remaining_s is None else arrived_s + remaining_s
    device_failures, traceparent = _read_metadata(context)
    call = Call(method, arrived_s, deadline_s, context.peer(), device_failures, TENANT.get(), traceparent)

    def let_go(_: object) -> None:
        call.held.close()

    # gRPC calls back when its transport has accepted the reply or the caller has gone, not when the handler returns.
    context.add_done_callback(let_go)  # type: ignore[arg-type]
    return call


def _read_metadata(context: Context) -> tuple[int, str]:
    """Return the number of device failures, 0 if it is missing or not a number from 0 to 99, and the traceparent."""
    device_failures, traceparent = 0, ""
    for key, value in context.invocation_metadata() or ():
        if key == DEVICE_FAILURES_KEY:
            device_failures = int(value) if str(value) in _DEVICE_FAILURES else 0
        elif key == "traceparent":
            traceparent = str(value)
    return device_failures, traceparent


async def _end_with_error(context: Context, call: Call, error: HeadwaiterError) -> None:
    status = status_of(error, call.request_id)
    await end_with_error(context, code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),))
