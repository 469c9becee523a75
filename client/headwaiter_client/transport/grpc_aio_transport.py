"""Carry the calls of `AsyncClient` over gRPC; `grpc_transport` describes the design."""

import asyncio
import random
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import chain
from typing import Any, TypeAlias

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, no_answer
from headwaiter_client.errors import Cancelled, DeadlineExceeded, HeadwaiterError, Transient, Unavailable
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.failover import OutgoingCall, Resend
from headwaiter_client.transport.grpc_transport import (
    CLOSED_BEFORE,
    CLOSED_DURING,
    MOVED,
    ReplicaCalls,
    more_connections,
)
from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S
from headwaiter_client.transport.retries import Attempts, RetryPolicy
from headwaiter_client.transport.status import error_from_rpc, is_silent
from headwaiter_client.transport.trace_context import with_trace_context
from headwaiter_client.waiting import wait_for_async_event

_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"
_HandleCheck: TypeAlias = "Callable[[weakref.ref[AsyncGrpcTransport], int, _Call], Coroutine[Any, Any, None]]"


class AsyncGrpcTransport(ReplicaCalls):
    """Carries calls over gRPC, as `GrpcTransport` does, in the event loop of its first call.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        super().__init__(connection, retry)
        self._connection = connection
        self._credentials = connection.credentials()
        self._metadata = connection.call_metadata()
        # gRPC binds a channel to the event loop that runs when the channel is made, so the first call makes it.
        self._channels: list[list[grpc.aio.Channel]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # The event loop holds only weak references to tasks, so a task without another reference may be deleted.
        self._probes: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        # Set and replaced when a replica has been probed, and when the client is closed.
        self._changed = asyncio.Event()

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Make a call; see `AsyncTransport.unary`."""
        timeout_s = capped_timeout_s(timeout_s, request_id)
        self._connect()
        deadline_s = time.monotonic() + timeout_s
        call = OutgoingCall(
            method, request, timeout_s, deadline_s, request_id, Attempts(with_trace_context(self._metadata))
        )
        budget = self._budgets.of(method)
        budget.start_call()
        reply = None
        try:
            while reply is None:
                index = await self._next_replica(call)
                try:
                    reply = await self._attempt(call, index)
                except Transient as error:
                    pause_s = await self._pause_s(call, index, error)
                    if pause_s is None:
                        await self._raise_mismatch(call, index, error)
                        raise
                    await wait_for_async_event(self._closed, pause_s)
        finally:
            budget.end_call(success=reply is not None)
        return reply

    async def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
        self._closed.set()
        for channel in chain.from_iterable(self._channels):
            await channel.close()
        self._changed.set()

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
            self._channels = [
                self._connection.aio_channels(index, self._credentials)
                for index in range(len(self._connection.addresses))
            ]
            self._start_probes(wait_for_ready=False)

    async def _next_replica(self, call: OutgoingCall) -> int:
        """Wait until calls may start, and return the replica for the next attempt."""
        if self._closed.is_set():
            raise Cancelled(CLOSED_BEFORE, request_id=call.request_id)
        if not self._replicas.ready and not await self._wait_until(lambda: self._replicas.ready, call.deadline_s):
            raise DeadlineExceeded(no_answer(call.timeout_s), request_id=call.request_id)
        self._start_probes()
        return self._replicas.next(call.attempts.unavailable)

    async def _pause_s(self, call: OutgoingCall, index: int, error: Transient) -> float | None:
        """Return the seconds until a call is sent again, or None if it fails; if no replica is up, wait for one."""
        resend = self._failover.after(call, index, error, time.monotonic())
        if resend is Resend.AT_ONCE:
            return 0.0
        if resend is Resend.NEVER:
            return None
        if resend is Resend.WHEN_UP and not await self._wait_until(lambda: self._replicas.any_up, call.deadline_s):
            return None
        return self._failover.pause_s(call, error, time.monotonic(), random.random())  # noqa: S311

    async def _raise_mismatch(self, call: OutgoingCall, index: int, error: Transient) -> None:
        """Raise a better error; see `GrpcTransport._raise_mismatch`."""
        if self._replicas.any_answered:
            return
        if self._tls_mismatch.should_check(index, str(error)):
            await asyncio.to_thread(self._tls_mismatch.check, index, call.deadline_s)
        if message := self._tls_mismatch.message(index):
            raise Unavailable(message, request_id=error.request_id) from error.__cause__

    async def _attempt(self, call: OutgoingCall, index: int) -> bytes:
        """Send a call once, to a replica."""
        stub = self._stub(index, call.method)
        sent_s = time.monotonic()
        sent: _Sent | None = None
        try:
            only_server = len(self._channels) == 1
            rpc = stub(
                call.request,
                timeout=call.deadline_s - sent_s,
                metadata=call.attempts.metadata,
                # A health check has found the server up again, perhaps by another connection than that of the call.
                wait_for_ready=only_server and call.attempts.waited,
            )
            if only_server:
                reply = await rpc
            else:
                sent = _Sent(rpc, call.patience_s, lambda sent: self._suspect(index, sent, sent_s))
                self._in_flight[index].add(sent)
                reply = await rpc
        except grpc.RpcError as error:
            failure = error_from_rpc(error, timeout_s=call.timeout_s, request_id=call.request_id)
            change = self._replicas.failed(index, failure, sent_s, time.monotonic(), is_silent=is_silent(error))
            self._note(index, change, str(failure))
            raise failure from error
        except grpc.aio.UsageError as error:
            raise Cancelled(CLOSED_BEFORE, request_id=call.request_id) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            if sent and sent.moved:
                raise Unavailable(MOVED, request_id=call.request_id) from error
            # The task was not cancelled, so the channel was closed during the call.
            raise Cancelled(CLOSED_DURING, request_id=call.request_id) from error
        finally:
            if sent:
                sent.end()
                self._in_flight[index].discard(sent)
        self._answered(index, sent_s)
        return reply

    def _stub(self, index: int, method: str) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
        """Return what sends the next call to a replica."""
        channels = self._channels[index]
        stub: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        stub = channels[next(self._channel_numbers) % len(channels)].unary_unary(method)
        return stub

    async def _wait_until(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Probe replicas until a condition holds, and return whether it does at the deadline; closing ends the wait."""
        while not self._closed.is_set():
            self._start_probes()
            if condition():
                return True
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            await wait_for_async_event(self._changed, min(deadline_s, self._replicas.next_probe_s) - now_s)
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _probe(self, index: int, timeout_s: float, *, wait_for_ready: bool) -> None:
        """Check a replica's health in the background."""
        self._check_health(index, timeout_s, _record_probe, wait_for_ready=wait_for_ready)

    def _ask_for_front_ends(self, index: int) -> None:
        """Open more connections, in the background, if the server has several front ends."""
        self._check_health(index, PROBE_TIMEOUT_S, _add_connections, wait_for_ready=False)

    def _check_health(self, index: int, timeout_s: float, handle: _HandleCheck, *, wait_for_ready: bool) -> None:
        """Check a replica's health in the background, and let `handle` handle the end of the call."""
        check = self._stub(index, HEALTH_METHOD)
        with suppress(grpc.aio.UsageError):  # The client is closed.
            call = check(HEALTH_REQUEST, timeout=timeout_s, metadata=self._metadata, wait_for_ready=wait_for_ready)
            task = asyncio.create_task(handle(weakref.ref(self), index, call))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    def add_connections(self, index: int, count: int) -> None:
        """Open more connections to a replica."""
        if count and not self._closed.is_set():
            self._channels[index] += self._connection.aio_channels(index, self._credentials, count)

    def record_probe(self, index: int, code: grpc.StatusCode, reply: bytes) -> None:
        """Record the outcome of a probe."""
        if not self._closed.is_set():
            self._record(index, code, reply)


class _Sent:
    """A call on its way to one of several replicas; see `grpc_transport._Sent`."""

    def __init__(
        self, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]", patience_s: float, suspect: Callable[["_Sent"], None]
    ) -> None:
        self.moved = False
        self._call = call
        self.patience_s = patience_s
        self._suspect = suspect
        self._timer = asyncio.get_running_loop().call_later(patience_s, self._lose_patience)

    def move(self) -> None:
        """Cancel the call, so that it moves to another replica."""
        self.moved = True
        self._call.cancel()

    def end(self) -> None:
        """Stop waiting, because the call has ended."""
        self._timer.cancel()

    def _lose_patience(self) -> None:
        self._suspect(self)
        self._timer = asyncio.get_running_loop().call_later(self.patience_s, self._lose_patience)


async def _record_probe(
    transport: "weakref.ref[AsyncGrpcTransport]", index: int, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]"
) -> None:
    """Wait for a probe; the task holds no reference to the transport, which is freed when nobody else holds it."""
    try:
        code = await call.code()
        reply = await call if code is grpc.StatusCode.OK else b""
    except Exception:  # noqa: BLE001 An interceptor raised it, so the next call raises it too, for the caller to see.
        code, reply = grpc.StatusCode.INTERNAL, b""
    alive = transport()
    if alive is not None:
        alive.record_probe(index, code, reply)


async def _add_connections(
    transport: "weakref.ref[AsyncGrpcTransport]", index: int, call: "grpc.aio.UnaryUnaryCall[bytes, bytes]"
) -> None:
    """Open more connections if the server has several front ends."""
    with suppress(Exception):  # The next call of the caller meets the error of an interceptor, too.
        more = more_connections(await call.trailing_metadata())
        if (alive := transport()) is not None:
            alive.add_connections(index, more)
