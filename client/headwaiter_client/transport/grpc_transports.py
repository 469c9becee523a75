"""Carry the calls of both clients over gRPC.

gRPC connects to each replica and reconnects. `failover` decides what is sent to which replica, and a transport takes
its steps. A transport has no thread of its own: calls start the probes of replicas that are down, and gRPC's thread or
a task records the outcome.
"""

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TypeAlias, cast

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, run_steps, run_steps_async
from headwaiter_client.transport.connection import Connection
from headwaiter_client.transport.failover import Attempt, Blocking, Failover, HealthCheck, OutgoingCall, Step
from headwaiter_client.transport.interface import CancelScope
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_client.waiting import MAX_WAIT_S, wait_for_async_event, wait_for_event
from headwaiter_proto.rules.errors import Cancelled, HeadwaiterError, Unavailable

_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"

# The channels that this process has inherited from its parent, which are never freed.
_INHERITED: list[list[list[grpc.Channel]]] = []

_CLOSED_BEFORE = "the client is closed: create a new client"
_CLOSED_DURING = "the client was closed before the answer came"
_MOVED = "the replica stopped answering while other replicas answer: call again, and look at the replica"
_CANCELLED_BY_SCOPE = "the call was cancelled, because another call failed or the stream was closed"


class GrpcTransport(Failover):
    """Carries the calls of `Client`. Several threads may make calls at the same time.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        super().__init__(connection, retry, threading.Event)
        self._open()

    def _open(self) -> None:
        """Open the channels of this process."""
        pid = os.getpid()
        # gRPC frees a channel that nobody closes only after the calls of that channel, which include probes.
        self._close_channels = weakref.finalize(self, _close_all, self._channels, pid)
        self._close_channels.atexit = False
        super()._open()
        self._pid = pid  # Last: other threads of a child process may now make calls.

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        cancel_scope: CancelScope | None = None,
    ) -> bytes:
        """Make a call; see `Transport.unary`."""
        call = self._outgoing(method, request, timeout_s, request_id)
        if os.getpid() != self._pid:
            self._reopen(request_id)
        return run_steps(self._steps(call), lambda step: self._take(step, call, cancel_scope))

    def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
        self._closed.set()
        self._close_channels()
        self._notify()

    def _reopen(self, request_id: str | None) -> None:
        """Open channels in a child process: the parent's channels need gRPC's threads, which only the parent has."""
        with self._opening:
            if self._closed.is_set():
                raise Cancelled(_CLOSED_BEFORE, request_id=request_id)
            if os.getpid() != self._pid:
                self._close_channels()
                self._forget()
                self._open()

    def _take(self, step: Step, call: OutgoingCall, cancel_scope: CancelScope | None) -> bytes | str | None:
        """Take one step of a call, and return its outcome."""
        if cancel_scope and cancel_scope.cancelled.is_set():
            raise self._cancelled(call)
        if isinstance(step, Attempt):
            return self._attempt(step, call, cancel_scope)
        if self._closed.is_set():
            raise self._cancelled(call)
        if isinstance(step, Blocking):
            return step.run()
        if step.changed is None:
            wait_for_event(cancel_scope.cancelled if cancel_scope else self._closed, step.pause_s)
        else:  # Cancelling the scope does not end this pause.
            wait_for_event(step.changed, min(step.pause_s, MAX_WAIT_S))
        return None

    def _cancelled(self, call: OutgoingCall) -> Cancelled:
        message = _CLOSED_DURING if self._closed.is_set() else _CANCELLED_BY_SCOPE
        return Cancelled(message, request_id=call.request_id)

    def _attempt(self, attempt: Attempt, call: OutgoingCall, cancel_scope: CancelScope | None) -> bytes:
        """Send a call once, to a replica."""
        stub = self._stub(attempt.index, call.method)
        left_s, metadata = call.deadline_s - attempt.sent_s, call.metadata
        only_server = len(self._channels) == 1
        # A health check has found the server up again, perhaps by another connection than that of the call.
        waits = only_server and call.waited
        try:
            if cancel_scope is None and only_server:  # A blocking call is faster than a future.
                reply: bytes = stub(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)
                return reply
            future = stub.future(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)
            with cancel_scope.holding(future) if cancel_scope else nullcontext():
                return self._reply(future, attempt, call)
        except grpc.FutureCancelledError as error:
            if cancel_scope and cancel_scope.cancelled.is_set():
                raise self._cancelled(call) from error
            raise Unavailable(_MOVED, request_id=call.request_id) from error
        except grpc.RpcError as error:
            if self._closed.is_set():
                raise self._cancelled(call) from error
            raise error_from_rpc(error, timeout_s=call.timeout_s, request_id=call.request_id) from error
        except ValueError as error:  # gRPC raises ValueError if the channel is closed; an interceptor may raise it too.
            if not self._closed.is_set():
                raise
            raise Cancelled(_CLOSED_BEFORE, request_id=call.request_id) from error

    def _reply(self, future: "grpc.Future[bytes]", attempt: Attempt, call: OutgoingCall) -> bytes:
        """Wait for the reply; now and then, look whether the call leaves its replica because that answers nothing."""
        while True:
            try:
                return future.result(None if len(self._channels) == 1 else call.patience_s)
            except grpc.FutureTimeoutError:
                if self._suspect(call, attempt):
                    future.cancel()

    def _new_channels(self, index: int, count: int) -> list[grpc.Channel]:
        return self._connection.channels(index, self._credentials, count)

    def _check_health(self, check: HealthCheck) -> None:
        # gRPC holds the callback until the call has ended; a client that nobody else holds is freed before.
        transport = weakref.ref(self)

        def record(future: "grpc.Future[bytes]") -> None:
            if (alive := transport()) is not None:
                call = cast("grpc.Call", future)
                reply = future.result() if call.code() is grpc.StatusCode.OK else b""
                alive._health_checked(check, call.code(), reply, call.trailing_metadata())  # noqa: SLF001

        stub, metadata = self._stub(check.index, HEALTH_METHOD), self._metadata

        def send() -> None:
            with suppress(ValueError):  # The client is closed.
                stub.future(
                    HEALTH_REQUEST, timeout=check.timeout_s, metadata=metadata, wait_for_ready=check.wait_for_ready
                ).add_done_callback(record)

        if self._connection.interceptors:  # They may wait for the reply.
            threading.Thread(target=send, daemon=True).start()
        else:
            send()


def _close_all(channels: list[list[grpc.Channel]], pid: int) -> None:
    if os.getpid() != pid:  # Closing a channel of the parent would wait for calls that end only in the parent.
        _INHERITED.append(channels)
        return
    for channel in itertools.chain.from_iterable(channels):
        channel.close()


class AsyncGrpcTransport(Failover):
    """Carries the calls of `AsyncClient`, in the event loop of its first call.

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
            raise Cancelled(_CLOSED_BEFORE, request_id=request_id)
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
            raise Cancelled(_CLOSED_DURING, request_id=call.request_id)
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
                raise Cancelled(_CLOSED_DURING, request_id=call.request_id) from error
            raise Unavailable(_MOVED, request_id=call.request_id) from error
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
    """Cancels a call that leaves a replica which answers nothing; see `GrpcTransport._reply`."""

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
