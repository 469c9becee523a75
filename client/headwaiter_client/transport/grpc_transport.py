"""Carry the calls of `Client` over gRPC. Several threads may make calls at the same time.

gRPC connects to each replica, watches its health and reconnects. The transport chooses the replica for each call, and
decides whether a failed call is sent again.
"""

import random
import threading
import time
from contextlib import suppress
from typing import cast

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST
from headwaiter_client.errors import Cancelled, DeadlineExceeded, HeadwaiterError, Unavailable
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.interface import CancelScope
from headwaiter_client.transport.replicas import Replicas
from headwaiter_client.transport.retries import Attempts, Metadata, RetryBudgets, RetryPolicy
from headwaiter_client.transport.status import error_from_rpc

# A health check ends with one of these codes if the server cannot be reached (UNAVAILABLE) or is stopping (CANCELLED).
DOWN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class GrpcTransport:
    """Carries calls over gRPC.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        self._metadata = connection.call_metadata()
        self._retries = RetryBudgets(retry)
        self._channels = connection.channels()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # Start at a random replica, so that clients that start together do not all call the same replica first.
        self._replicas = Replicas(len(self._channels), first=random.randrange(len(self._channels)))  # noqa: S311
        self._ready = threading.Event()
        self._balanced = connection.balanced
        if self._balanced:
            for index in range(len(self._channels)):
                self._check_health(index, wait=False)
        else:
            self._ready.set()

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        cancel_scope: CancelScope | None = None,
    ) -> bytes:
        """Make a call; see `Transport.unary`."""
        timeout_s = capped_timeout_s(timeout_s, request_id)
        deadline_s = time.monotonic() + timeout_s
        retries = self._retries.of(method)
        attempts = Attempts(self._metadata)
        while True:
            try:
                reply = self._attempt(
                    method, request, attempts.metadata, timeout_s, deadline_s, request_id, cancel_scope
                )
            except HeadwaiterError as error:
                attempts.note_failure(error)
                wait_s = retries.wait_s(error, attempts.count, deadline_s - time.monotonic(), random.random())  # noqa: S311
                if wait_s is None:
                    raise
            else:
                retries.add_success()
                return reply
            self._closed.wait(wait_s)

    def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
        self._closed.set()
        for channel in self._channels:
            channel.close()
        self._ready.set()

    def _attempt(
        self,
        method: str,
        request: bytes,
        metadata: Metadata,
        timeout_s: float,
        deadline_s: float,
        request_id: str | None,
        cancel_scope: CancelScope | None,
    ) -> bytes:
        """Wait until a replica is ready, and send the call once, to the next replica."""
        if not self._ready.wait(deadline_s - time.monotonic()):
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s: set a longer timeout_s", request_id=request_id)
        with self._lock:
            index = self._replicas.next()
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(method)
        left_s = deadline_s - time.monotonic()
        try:
            if cancel_scope is None:  # A blocking call is faster than a future.
                return call(request, timeout=left_s, metadata=metadata)
            return cancel_scope.run(lambda: call.future(request, timeout=left_s, metadata=metadata))
        except grpc.FutureCancelledError as error:
            raise Cancelled(
                "the call was cancelled, because another call failed or the stream was closed", request_id=request_id
            ) from error
        except grpc.RpcError as error:
            if self._closed.is_set():
                raise Cancelled("the client was closed before the answer came", request_id=request_id) from error
            failure = error_from_rpc(error, timeout_s=timeout_s, request_id=request_id)
            if isinstance(failure, Unavailable):
                self._record_state(index, up=False)
            raise failure from error
        except ValueError as error:  # gRPC raises ValueError here only if the channel is closed.
            raise Cancelled("the client is closed: create a new client", request_id=request_id) from error

    def _record_state(self, index: int, *, up: bool) -> None:
        """Record whether a replica is up, and start a health check if it went down."""
        if not self._balanced:
            return
        with self._lock:
            changed = self._replicas.record(index, up)
            if self._replicas.ready:
                self._ready.set()
        if changed and not up:
            self._check_health(index, wait=True)

    def _check_health(self, index: int, *, wait: bool) -> None:
        """Check a replica's health in the background; if `wait`, first wait until gRPC's health watch reports it up."""

        def record(call: "grpc.Future[bytes]") -> None:
            if not self._closed.is_set():
                self._record_state(index, up=wait or cast("grpc.Call", call).code() not in DOWN_CODES)

        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[index].unary_unary(HEALTH_METHOD)
        with suppress(ValueError):  # The client is closed.
            check.future(HEALTH_REQUEST, wait_for_ready=wait).add_done_callback(record)
