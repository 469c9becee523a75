"""Carry the calls of `AsyncClient` over gRPC; `grpc_transport` describes the design."""

import asyncio
import random
import time
from contextlib import suppress

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST
from headwaiter_client.errors import Cancelled, DeadlineExceeded, HeadwaiterError, Unavailable
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.grpc_transport import DOWN_CODES
from headwaiter_client.transport.replicas import Replicas
from headwaiter_client.transport.retries import Attempts, Metadata, RetryBudgets, RetryPolicy
from headwaiter_client.transport.status import error_from_rpc


class AsyncGrpcTransport:
    """Carries calls over gRPC, as `GrpcTransport` does; create it in the event loop that uses it."""

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        self._metadata = connection.call_metadata()
        self._retries = RetryBudgets(retry)
        self._channels = connection.aio_channels()
        self._closed = asyncio.Event()
        # Start at a random replica, so that clients that start together do not all call the same replica first.
        self._replicas = Replicas(len(self._channels), first=random.randrange(len(self._channels)))  # noqa: S311
        self._ready = asyncio.Event()
        # The event loop holds only weak references to tasks, so a task without another reference may be deleted.
        self._health_checks: set[asyncio.Task[None]] = set()
        self._balanced = connection.balanced
        if self._balanced:
            for index in range(len(self._channels)):
                self._check_health(index, wait=False)
        else:
            self._ready.set()

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Make a call; see `AsyncTransport.unary`."""
        timeout_s = capped_timeout_s(timeout_s, request_id)
        deadline_s = time.monotonic() + timeout_s
        retries = self._retries.of(method)
        attempts = Attempts(self._metadata)
        while True:
            try:
                reply = await self._attempt(method, request, attempts.metadata, timeout_s, deadline_s, request_id)
            except HeadwaiterError as error:
                attempts.note_failure(error)
                wait_s = retries.wait_s(error, attempts.count, deadline_s - time.monotonic(), random.random())  # noqa: S311
                if wait_s is None:
                    raise
            else:
                retries.add_success()
                return reply
            await _wait(self._closed, wait_s)

    async def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
        self._closed.set()
        for channel in self._channels:
            await channel.close()
        self._ready.set()

    async def _attempt(
        self,
        method: str,
        request: bytes,
        metadata: Metadata,
        timeout_s: float,
        deadline_s: float,
        request_id: str | None,
    ) -> bytes:
        """Wait until a replica is ready, and send the call once, to the next replica."""
        if not await _wait(self._ready, deadline_s - time.monotonic()):
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s: set a longer timeout_s", request_id=request_id)
        index = self._replicas.next()
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(method)
        try:
            return await call(request, timeout=deadline_s - time.monotonic(), metadata=metadata)
        except grpc.RpcError as error:
            failure = error_from_rpc(error, timeout_s=timeout_s, request_id=request_id)
            if isinstance(failure, Unavailable):
                self._record_state(index, up=False)
            raise failure from error
        except grpc.aio.UsageError as error:
            raise Cancelled("the client is closed: create a new client", request_id=request_id) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # The task was not cancelled, so the channel was closed during the call.
            raise Cancelled("the client was closed before the answer came", request_id=request_id) from error

    def _record_state(self, index: int, *, up: bool) -> None:
        """Record whether a replica is up, and start a health check if it went down."""
        if not self._balanced:
            return
        changed = self._replicas.record(index, up)
        if self._replicas.ready:
            self._ready.set()
        if changed and not up:
            self._check_health(index, wait=True)

    def _check_health(self, index: int, *, wait: bool) -> None:
        """Check a replica's health in the background; see `GrpcTransport._check_health`."""

        async def check_health() -> None:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(HEALTH_METHOD)
            with suppress(grpc.aio.UsageError):  # The client is closed.
                code = await check(HEALTH_REQUEST, wait_for_ready=wait).code()
                if not self._closed.is_set():
                    self._record_state(index, up=wait or code not in DOWN_CODES)

        task = asyncio.create_task(check_health())
        self._health_checks.add(task)
        task.add_done_callback(self._health_checks.discard)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, and return whether it was set in time."""
    if not event.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()
