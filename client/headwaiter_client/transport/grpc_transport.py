"""Carry the calls of `Client` over gRPC. Several threads may make calls at the same time.

gRPC connects to each replica and reconnects. `failover` decides what is sent to which replica, and the transport takes
its steps. The transport has no thread of its own: calls start the probes of replicas that are down, and gRPC's thread
records the outcome.
"""

import itertools
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import TypeAlias, cast

import grpc

from headwaiter_client.calls.run_steps import run_steps
from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, HEALTH_SERVING
from headwaiter_client.errors import Cancelled, Unavailable
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.failover import Attempt, Blocking, Failover, OutgoingCall, Step
from headwaiter_client.transport.interface import CancelScope
from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S, Probe
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_client.transport.trace_context import with_trace_context
from headwaiter_client.waiting import MAX_WAIT_S, wait_for_event
from headwaiter_proto.rules.status import FRONT_ENDS_KEY

# A probe ends with one of these codes if the server cannot be reached (UNAVAILABLE) or is stopping (CANCELLED).
_DOWN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# The most connections to a server with front ends.
_MOST_CONNECTIONS = 16

# The channels that this process has inherited from its parent, which are never freed.
_INHERITED: list[list[list[grpc.Channel]]] = []

CANCELLED_BY_SCOPE = "the call was cancelled, because another call failed or the stream was closed"
CLOSED_BEFORE = "the client is closed: create a new client"
CLOSED_DURING = "the client was closed before the answer came"
MOVED = "the replica stopped answering while other replicas answer: call again, and look at the replica"

_Stub: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"


class GrpcTransport(Failover):
    """Carries calls over gRPC.

    Raises:
        OSError: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        self._connection, self._retry = connection, retry
        self._credentials = connection.credentials()
        self._metadata = connection.call_metadata()
        self._closed = threading.Event()
        self._opening = threading.Lock()
        self._open()

    def _open(self) -> None:
        """Open the channels of this process, and forget all that another process knows about the replicas."""
        super().__init__(self._connection, self._retry, threading.Event)
        # Gives each call to a replica the next one of its connections.
        self._channel_numbers = itertools.count()
        # The channels to each replica.
        self._channels = channels = [
            self._connection.channels(index, self._credentials) for index in range(len(self._connection.addresses))
        ]
        # Kept, because gRPC needs about 10 µs to make one.
        self._kept_stub: Callable[[int, int, str], _Stub] = cache(
            lambda index, place, method: channels[index][place].unary_unary(method)
        )
        self._pid = os.getpid()
        # gRPC frees a channel that nobody closes only after the calls of that channel, which include probes.
        self._close_channels = weakref.finalize(self, _close_all, self._channels, self._pid)
        self._close_channels.atexit = False
        self._start_probes(wait_for_ready=False)

    def _stub(self, index: int, method: str) -> _Stub:
        """Return what sends the next call to a replica."""
        return self._kept_stub(index, next(self._channel_numbers) % len(self._channels[index]), method)

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
        if os.getpid() != self._pid:
            self._reopen(request_id)
        deadline_s = time.monotonic() + timeout_s
        call = OutgoingCall(method, request, timeout_s, deadline_s, request_id, with_trace_context(self._metadata))
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
                return stub(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)

            def start() -> _Sent:
                future = stub.future(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)
                return _Sent(future, None if only_server else call.patience_s, lambda: self._suspect(call, attempt))

            return cancel_scope.run(start) if cancel_scope else start().result()
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

    def _probe(self, index: int, timeout_s: float, *, wait_for_ready: bool) -> None:
        """Check a replica's health in the background."""
        self._check_health(index, timeout_s, GrpcTransport._record_probe, wait_for_ready=wait_for_ready)

    def _ask_for_front_ends(self, index: int) -> None:
        """Open more connections, in the background, if the server has several front ends."""
        self._check_health(index, PROBE_TIMEOUT_S, GrpcTransport._add_connections, wait_for_ready=False)

    def _check_health(
        self,
        index: int,
        timeout_s: float,
        handle: "Callable[[GrpcTransport, int, grpc.Future[bytes]], None]",
        *,
        wait_for_ready: bool,
    ) -> None:
        """Check a replica's health in the background, and let `handle` handle the end of the call."""
        # gRPC holds the callback until the call has ended; a client that nobody else holds is freed before.
        transport = weakref.ref(self)

        def record(call: "grpc.Future[bytes]") -> None:
            alive = transport()
            if alive is not None and not alive._closed.is_set():  # noqa: SLF001
                handle(alive, index, call)

        stub, metadata = self._stub(index, HEALTH_METHOD), self._metadata

        def send() -> None:
            with suppress(ValueError):  # The client is closed.
                stub.future(
                    HEALTH_REQUEST, timeout=timeout_s, metadata=metadata, wait_for_ready=wait_for_ready
                ).add_done_callback(record)

        if self._connection.interceptors:  # They may wait for the reply.
            threading.Thread(target=send, daemon=True).start()
        else:
            send()

    def _record_probe(self, index: int, call: "grpc.Future[bytes]") -> None:
        code = cast("grpc.Call", call).code()
        self._probed(index, *probe_outcome(code, call.result() if code is grpc.StatusCode.OK else b""))

    def _add_connections(self, index: int, call: "grpc.Future[bytes]") -> None:
        more = more_connections(cast("grpc.Call", call).trailing_metadata())
        with self._opening:
            if more and not self._closed.is_set():
                self._channels[index] += self._connection.channels(index, self._credentials, more)


def more_connections(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return how many connections to open besides the first, given the trailing metadata of a health check.

    The kernel gives each connection to a front end at random. With two connections for each front end, few get none.
    """
    for key, value in metadata or ():
        if key == FRONT_ENDS_KEY and re.fullmatch("[0-9]{1,3}", str(value)):
            return max(0, min(2 * int(value), _MOST_CONNECTIONS) - 1)
    return 0


class _Sent:
    """A call in flight that leaves a replica which answers nothing.

    Args:
        future: the call.
        patience_s: seconds without an answer after which `leaves` is asked, and again after as many.
        leaves: returns whether the call is cancelled.
    """

    def __init__(self, future: "grpc.Future[bytes]", patience_s: float | None, leaves: Callable[[], bool]) -> None:
        self._future, self._patience_s, self._leaves = future, patience_s, leaves
        self.cancel = future.cancel

    def result(self) -> bytes:
        """Wait for the reply."""
        while True:
            try:
                return self._future.result(self._patience_s)
            except grpc.FutureTimeoutError:
                if self._leaves():
                    self.cancel()


def probe_outcome(code: grpc.StatusCode, reply: bytes) -> tuple[Probe, str]:
    """Return the outcome and the reason of a probe that ended with a code, and with a reply if the code is OK."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        outcome = Probe.SILENT
    elif code is grpc.StatusCode.OK:
        outcome = Probe.SERVING if reply == HEALTH_SERVING else Probe.REFUSED
    else:
        # Another error comes from a server or a proxy that does not offer the health service, so it cannot be down.
        outcome = Probe.REFUSED if code in _DOWN_CODES else Probe.SERVING
    return outcome, f"its health check ended with {code.name}"


def _close_all(channels: list[list[grpc.Channel]], pid: int) -> None:
    if os.getpid() != pid:  # Closing a channel of the parent would wait for calls that end only in the parent.
        _INHERITED.append(channels)
        return
    for channel in itertools.chain.from_iterable(channels):
        channel.close()
