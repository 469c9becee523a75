"""Carry the calls of `AsyncClient` over gRPC; `grpc_transport` describes the design."""

import asyncio
import itertools
import weakref
from collections.abc import Callable
from typing import TypeAlias

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, run_steps_async
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.failover import (
    CLOSED_BEFORE,
    CLOSED_DURING,
    MOVED,
    Attempt,
    Blocking,
    Failover,
    HealthCheck,
    OutgoingCall,
    Step,
)
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_client.waiting import wait_for_async_event
from headwaiter_proto.rules.errors import Cancelled, HeadwaiterError, Unavailable

_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"


class AsyncGrpcTransport(Failover):
    """Carries calls over gRPC, as `GrpcTransport` does, in the event loop of its first call.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        super().__init__(connection, retry, asyncio.Event)
        # gRPC binds a channel to the event loop that runs when the channel is made, so the first call makes it.
        self._loop: asyncio.AbstractEventLoop | None = None
        # The event loop holds only weak references to tasks, so a task without another reference may be deleted.
        self._health_checks: set[asyncio.Task[None]] = set()

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Make a call; see `AsyncTransport.unary`."""
        call = self._outgoing(method, request, timeout_s, request_id)
        self._connect()
        if self._closed.is_set():
            raise Cancelled(CLOSED_BEFORE, request_id=request_id)
        return await run_steps_async(self._steps(call), lambda step: self._take(step, call))

    async def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
        self._closed.set()
        for channel in itertools.chain.from_iterable(self._channels):
            await channel.close()
        self._notify()

    def _connect(self) -> None:
        """Open the channels in the running event loop, unless they are open.

        Raises:
            HeadwaiterError: the client has made calls in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            raise HeadwaiterError(
                "this AsyncClient belongs to the event loop of its first call, and another loop is running: make an "
                "AsyncClient in each event loop, or make all calls inside one asyncio.run"
            )
        self._loop = loop
        if not self._closed.is_set():
            self._open()

    async def _take(self, step: Step, call: OutgoingCall) -> bytes | str | None:
        """Take one step of a call, and return its outcome."""
        if self._closed.is_set():
            raise Cancelled(CLOSED_DURING, request_id=call.request_id)
        if isinstance(step, Attempt):
            return await self._attempt(step, call)
        if isinstance(step, Blocking):
            return await asyncio.to_thread(step.run)
        await wait_for_async_event(step.changed or self._closed, step.pause_s)
        return None

    async def _attempt(self, attempt: Attempt, call: OutgoingCall) -> bytes:
        """Send a call once, to a replica."""
        only_server = len(self._channels) == 1
        patience: _Patience | None = None
        try:
            rpc = self._stub(attempt.index, call.method)(
                call.request,
                timeout=call.deadline_s - attempt.sent_s,
                metadata=call.metadata,
                # A health check has found the server up again, perhaps by another connection than that of the call.
                wait_for_ready=only_server and call.waited,
            )
            if not only_server:
                patience = _Patience(call.patience_s, lambda: self._suspect(call, attempt), rpc)
            reply: bytes = await rpc
            return reply
        except grpc.RpcError as error:
            raise error_from_rpc(error, timeout_s=call.timeout_s, request_id=call.request_id) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            if self._closed.is_set():
                raise Cancelled(CLOSED_DURING, request_id=call.request_id) from error
            raise Unavailable(MOVED, request_id=call.request_id) from error
        finally:
            if patience:
                patience.end()

    def _new_channels(self, index: int, count: int) -> list[grpc.aio.Channel]:
        return self._connection.aio_channels(index, self._credentials, count)

    def _check_health(self, check: HealthCheck) -> None:
        if not self._closed.is_set():
            call = self._stub(check.index, HEALTH_METHOD)(
                HEALTH_REQUEST, timeout=check.timeout_s, metadata=self._metadata, wait_for_ready=check.wait_for_ready
            )
            task = asyncio.create_task(_record(weakref.ref(self), check, call))
            self._health_checks.add(task)
            task.add_done_callback(self._health_checks.discard)


class _Patience:
    """Cancels a call that leaves a replica which answers nothing; see `grpc_transport._Sent`."""

    def __init__(self, patience_s: float, leaves: Callable[[], bool], call: _Call) -> None:
        self._patience_s, self._leaves, self._call = patience_s, leaves, call
        self._begin()

    def end(self) -> None:
        """Stop waiting, because the call has ended."""
        self._timer.cancel()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._lose)

    def _lose(self) -> None:
        if self._leaves():
            self._call.cancel()
        else:
            self._begin()


async def _record(transport: "weakref.ref[AsyncGrpcTransport]", check: HealthCheck, call: _Call) -> None:
    """Wait for a health check; the task holds no reference to the transport, which is freed when nobody else does."""
    try:
        code, metadata = await call.code(), await call.trailing_metadata()
        reply = await call if code is grpc.StatusCode.OK else b""
    except Exception:  # noqa: BLE001 An interceptor raised it, so the next call raises it too, for the caller to see.
        code, metadata, reply = grpc.StatusCode.INTERNAL, None, b""
    if (alive := transport()) is not None:
        alive._health_checked(check, code, reply, metadata)  # noqa: SLF001
