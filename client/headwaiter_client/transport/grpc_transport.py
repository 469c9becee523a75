"""Carry the calls of `Client` over gRPC. Several threads may make calls at the same time.

gRPC connects to each replica and reconnects. `failover` decides what is sent to which replica, and the transport takes
its steps. The transport has no thread of its own: calls start the probes of replicas that are down, and gRPC's thread
records the outcome.
"""

import itertools
import os
import threading
import weakref
from contextlib import nullcontext, suppress
from typing import cast

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, run_steps
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
from headwaiter_client.transport.interface import CancelScope
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_client.waiting import MAX_WAIT_S, wait_for_event
from headwaiter_proto.rules.errors import Cancelled, Unavailable

# The channels that this process has inherited from its parent, which are never freed.
_INHERITED: list[list[list[grpc.Channel]]] = []

CANCELLED_BY_SCOPE = "the call was cancelled, because another call failed or the stream was closed"


class GrpcTransport(Failover):
    """Carries calls over gRPC.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        super().__init__(connection, retry, threading.Event)
        self._open()

    def _open(self) -> None:
        """Open the channels of this process."""
        self._pid = os.getpid()
        # gRPC frees a channel that nobody closes only after the calls of that channel, which include probes.
        self._close_channels = weakref.finalize(self, _close_all, self._channels, self._pid)
        self._close_channels.atexit = False
        super()._open()

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
                raise Cancelled(CLOSED_BEFORE, request_id=request_id)
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
        message = CLOSED_DURING if self._closed.is_set() else CANCELLED_BY_SCOPE
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
            raise Unavailable(MOVED, request_id=call.request_id) from error
        except grpc.RpcError as error:
            if self._closed.is_set():
                raise self._cancelled(call) from error
            raise error_from_rpc(error, timeout_s=call.timeout_s, request_id=call.request_id) from error
        except ValueError as error:  # gRPC raises ValueError if the channel is closed; an interceptor may raise it too.
            if not self._closed.is_set():
                raise
            raise Cancelled(CLOSED_BEFORE, request_id=call.request_id) from error

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
