"""How bytes reach a server: the seam between what a call means and how it is carried.

gRPC connects to each replica, watches its health and connects again. What is left is which replica takes the next call,
and what becomes of a call that failed.
"""

import asyncio
import random
import threading
import time
from contextlib import suppress
from typing import Protocol, cast

import grpc

from headwaiter_client.calls import steps as _core
from headwaiter_client.errors import Cancelled, DeadlineExceeded, HeadwaiterError, Unavailable
from headwaiter_client.transport.connection import Connection, remaining_s
from headwaiter_client.transport.replicas import Replicas
from headwaiter_client.transport.retries import Budgets, RetryPolicy
from headwaiter_client.transport.status import error_from_rpc

# What gRPC says of a server that does not answer, and of one that stops.
_UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Flight:
    """Calls of several threads that end together."""

    def __init__(self) -> None:
        self._calls: set[grpc.Future[bytes]] = set()
        self._cancelled = False
        self._lock = threading.Lock()

    def result(self, call: "grpc.Future[bytes]") -> bytes:
        """Waits for the reply to a call.

        Raises:
            grpc.RpcError: it failed.
            grpc.FutureCancelledError: it was cancelled.
        """
        with self._lock:
            self._calls.add(call)
            cancelled = self._cancelled
        try:
            if cancelled:
                call.cancel()
            return call.result()
        finally:
            with self._lock:
                self._calls.remove(call)

    def cancel(self) -> None:
        """Cancels the calls on their way, on the server too, and later ones."""
        with self._lock:
            self._cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


class Transport(Protocol):
    """Carries calls for threads, which may share it."""

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        """Makes a call.

        Args:
            method: its gRPC path, such as "/headwaiter.v1.Encoder/Encode".
            request: the message.
            timeout_s: seconds until the deadline.
            request_id: what errors call the request.
            flight: what may cancel it, with others; nothing may when None.

        Raises:
            HeadwaiterError: the call failed.
        """

    def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""


class AsyncTransport(Protocol):
    """Carries calls for one event loop: `Transport`, with methods to await."""

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call; see `Transport.unary`. Cancelling the task cancels the call on the server too."""

    async def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""


class GrpcTransport:
    """Carries calls over gRPC.

    Args:
        connection: where to, and how.
        retry: whether a call that failed is sent again, and when.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        self._metadata = connection.call_metadata()
        self._retries = Budgets(retry)
        self._channels = connection.channels()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._replicas = _replicas(len(self._channels))
        self._known = threading.Event()
        self._balanced = connection.balanced
        if self._balanced:
            for index in range(len(self._channels)):
                self._look_at(index, wait=False)
        else:
            self._known.set()

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        """Makes a call; see `Transport.unary`."""
        timeout_s = remaining_s(timeout_s, request_id)
        end_s = time.monotonic() + timeout_s
        retries = self._retries.of(method)
        attempts = 0
        while True:
            attempts += 1
            try:
                reply = self._attempt(method, request, timeout_s, end_s, request_id, flight)
            except HeadwaiterError as error:
                wait_s = retries.wait_s(error, attempts, end_s - time.monotonic(), _jitter())
                if wait_s is None:
                    raise
            else:
                retries.succeeded()
                return reply
            self._closed.wait(wait_s)

    def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""
        self._closed.set()
        for channel in self._channels:
            channel.close()
        self._known.set()

    def _attempt(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        end_s: float,
        request_id: str | None,
        flight: Flight | None,
    ) -> bytes:
        if not self._known.wait(end_s - time.monotonic()):
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s", request_id=request_id)
        with self._lock:
            index = self._replicas.next()
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(method)
        left_s = end_s - time.monotonic()
        try:
            if flight is None:  # Which is faster.
                return call(request, timeout=left_s, metadata=self._metadata)
            return flight.result(call.future(request, timeout=left_s, metadata=self._metadata))
        except grpc.FutureCancelledError as error:
            raise Cancelled("the call was cancelled with others", request_id=request_id) from error
        except grpc.RpcError as error:
            if self._closed.is_set():
                raise Cancelled("the client was closed before the answer came", request_id=request_id) from error
            failure = error_from_rpc(error, timeout_s=timeout_s, request_id=request_id)
            if isinstance(failure, Unavailable):
                self._mark(index, up=False)
            raise failure from error
        except ValueError as error:  # What gRPC says of a closed channel, and of nothing else that we hand it.
            raise Cancelled("the client is closed", request_id=request_id) from error

    def _mark(self, index: int, *, up: bool) -> None:
        """Notes whether a replica is up, and looks after one that went down."""
        if not self._balanced:
            return
        with self._lock:
            new = self._replicas.mark(index, up=up)
            if self._replicas.known:
                self._known.set()
        if new and not up:
            self._look_at(index, wait=True)

    def _look_at(self, index: int, *, wait: bool) -> None:
        """Asks a replica for its health in the background; with `wait`, as soon as gRPC finds it healthy."""

        def note(call: "grpc.Future[bytes]") -> None:
            if not self._closed.is_set():
                self._mark(index, up=wait or cast("grpc.Call", call).code() not in _UNREACHED)

        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(_core.HEALTH_METHOD)
        with suppress(ValueError):  # The client is closed.
            check.future(_core.HEALTH_REQUEST, wait_for_ready=wait).add_done_callback(note)


class AsyncGrpcTransport:
    """Carries calls over gRPC from one event loop, where it must be made; otherwise as `GrpcTransport`."""

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        self._metadata = connection.call_metadata()
        self._retries = Budgets(retry)
        self._channels = connection.aio_channels()
        self._closed = asyncio.Event()
        self._replicas = _replicas(len(self._channels))
        self._known = asyncio.Event()
        # The loop itself forgets tasks that nobody holds.
        self._looks: set[asyncio.Task[None]] = set()
        self._balanced = connection.balanced
        if self._balanced:
            for index in range(len(self._channels)):
                self._look_at(index, wait=False)
        else:
            self._known.set()

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call; see `AsyncTransport.unary`."""
        timeout_s = remaining_s(timeout_s, request_id)
        end_s = time.monotonic() + timeout_s
        retries = self._retries.of(method)
        attempts = 0
        while True:
            attempts += 1
            try:
                reply = await self._attempt(method, request, timeout_s, end_s, request_id)
            except HeadwaiterError as error:
                wait_s = retries.wait_s(error, attempts, end_s - time.monotonic(), _jitter())
                if wait_s is None:
                    raise
            else:
                retries.succeeded()
                return reply
            await _within(self._closed, wait_s)

    async def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""
        self._closed.set()
        for channel in self._channels:
            await channel.close()
        self._known.set()

    async def _attempt(
        self, method: str, request: bytes, timeout_s: float, end_s: float, request_id: str | None
    ) -> bytes:
        if not await _within(self._known, end_s - time.monotonic()):
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s", request_id=request_id)
        index = self._replicas.next()
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(method)
        try:
            return await call(request, timeout=end_s - time.monotonic(), metadata=self._metadata)
        except grpc.RpcError as error:
            failure = error_from_rpc(error, timeout_s=timeout_s, request_id=request_id)
            if isinstance(failure, Unavailable):
                self._mark(index, up=False)
            raise failure from error
        except grpc.aio.UsageError as error:
            raise Cancelled("the client is closed", request_id=request_id) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # Nobody cancelled the task: the channel was closed under the call.
            raise Cancelled("the client was closed before the answer came", request_id=request_id) from error

    def _mark(self, index: int, *, up: bool) -> None:
        """Notes whether a replica is up, and looks after one that went down."""
        if not self._balanced:
            return
        new = self._replicas.mark(index, up=up)
        if self._replicas.known:
            self._known.set()
        if new and not up:
            self._look_at(index, wait=True)

    def _look_at(self, index: int, *, wait: bool) -> None:
        """Asks a replica for its health in the background; with `wait`, as soon as gRPC finds it healthy."""

        async def look() -> None:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(
                _core.HEALTH_METHOD
            )
            with suppress(grpc.aio.UsageError):  # The client is closed.
                code = await check(_core.HEALTH_REQUEST, wait_for_ready=wait).code()
                if not self._closed.is_set():
                    self._mark(index, up=wait or code not in _UNREACHED)

        task = asyncio.create_task(look())
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for an event; tells whether it came in time."""
    if not event.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()


def _replicas(count: int) -> Replicas:
    """Makes replicas such that clients that start together do not all start with the same one."""
    return Replicas(count, first=random.randrange(count))  # noqa: S311 (no secret)


def _jitter() -> float:
    return random.random()  # noqa: S311 (no secret)
