"""Carry the calls of `Client` over gRPC. Several threads may make calls at the same time.

gRPC connects to each replica and reconnects. The transport chooses the replica for each call (`replicas`), and decides
whether a failed call is sent again (`failover`). It has no thread of its own: calls start the probes of replicas that
are down, and gRPC's thread records the outcome.
"""

import itertools
import os
import random
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias, cast

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_REQUEST, HEALTH_SERVING, no_answer
from headwaiter_client.errors import Cancelled, DeadlineExceeded, Transient, Unavailable
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.failover import Failover, OutgoingCall, Resend
from headwaiter_client.transport.interface import CancelScope
from headwaiter_client.transport.log import TransportLog
from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S, Change, Probe, Replicas
from headwaiter_client.transport.retries import Attempts, RetryBudgets, RetryPolicy
from headwaiter_client.transport.status import error_from_rpc, is_silent
from headwaiter_client.transport.tls_mismatch import TlsMismatch
from headwaiter_client.transport.trace_context import with_trace_context
from headwaiter_client.waiting import MAX_WAIT_S, wait_for_event
from headwaiter_proto.rules.status import FRONT_ENDS_KEY

# A probe ends with one of these codes if the server cannot be reached (UNAVAILABLE) or is stopping (CANCELLED).
_DOWN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# A client with this number of calls in flight opens several connections to a server with front ends, at most 16.
_MANY_CALLS, _MOST_CONNECTIONS = 4, 16

# The channels that this process has inherited from its parent, which are never freed.
_INHERITED: list[list[list[grpc.Channel]]] = []

CANCELLED_BY_SCOPE = "the call was cancelled, because another call failed or the stream was closed"
CLOSED_BEFORE = "the client is closed: create a new client"
CLOSED_DURING = "the client was closed before the answer came"
MOVED = "the replica stopped answering while other replicas answer: call again, and look at the replica"

_Stub: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"


class ReplicaCalls(ABC):
    """What both transports know about their replicas and the calls to them, and what they do about a change.

    Args:
        connection: the addresses.
        retry: whether a failed call is sent again, and when.
    """

    def __init__(self, connection: Connection, retry: RetryPolicy) -> None:
        count = len(connection.addresses)
        self._budgets = RetryBudgets(retry)
        # Start at a random replica, so that clients that start together do not all call the same replica first.
        self._replicas = Replicas(count, random.randrange(count), probe_first=connection.balanced)  # noqa: S311
        self._log = TransportLog(connection.addresses)
        self._tls_mismatch = TlsMismatch(connection)
        self._failover = Failover(self._replicas, self._budgets, self._log)
        self._in_flight: list[set[Any]] = [set() for _ in range(count)]
        # Gives each call to a replica the next one of its connections.
        self._channel_numbers = itertools.count()
        self._asked_for_front_ends = [False] * count

    def _note(self, index: int, change: Change | None, reason: str = "") -> None:
        """Act on the change of a replica."""
        if change is None:
            return
        self._log.change(index, change, reason, time.monotonic())
        if change is Change.ASIDE:
            for sent in list(self._in_flight[index]):
                sent.move()
        self._start_probes()
        self._notify()

    def _suspect(self, index: int, sent: Any, sent_s: float) -> None:
        """Probe the replica of a call if it has not answered since `sent_s`, while other replicas answer."""
        if self._replicas.is_aside(index):
            sent.move()  # Another call has put the replica aside before this call was in flight.
        elif self._replicas.suspect(index, sent_s, time.monotonic()):
            self._probe(index, sent.patience_s, wait_for_ready=False)

    def _start_probes(self, *, wait_for_ready: bool = True) -> None:
        """Start the probes that are due."""
        for index in self._replicas.due(time.monotonic()):
            self._probe(index, PROBE_TIMEOUT_S, wait_for_ready=wait_for_ready)

    def _record(self, index: int, code: grpc.StatusCode, reply: bytes) -> None:
        """Record the end of a probe."""
        change = self._replicas.probed(index, _probe_outcome(code, reply), time.monotonic())
        if change is None:
            self._notify()  # The time of the next probe has changed.
        else:
            self._note(index, change, f"its health check ended with {code.name}")

    def _answered(self, index: int, sent_s: float) -> None:
        """Record that a replica has answered a call with a result."""
        self._note(index, self._replicas.answered(index, sent_s, time.monotonic()))
        # A caller of one call at a time would gain nothing from a second connection.
        if not self._asked_for_front_ends[index] and self._budgets.calls_in_flight >= _MANY_CALLS:
            self._asked_for_front_ends[index] = True
            self._ask_for_front_ends(index)

    @abstractmethod
    def _ask_for_front_ends(self, index: int) -> None:
        """Open more connections, in the background, if the server has several front ends."""

    @abstractmethod
    def _probe(self, index: int, timeout_s: float, *, wait_for_ready: bool) -> None:
        """Check a replica's health in the background."""

    @abstractmethod
    def _notify(self) -> None:
        """Wake the calls that wait for a change."""


class GrpcTransport(ReplicaCalls):
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
        super().__init__(self._connection, self._retry)
        # The channels to each replica.
        self._channels = channels = [
            self._connection.channels(index, self._credentials) for index in range(len(self._connection.addresses))
        ]
        # Kept, because gRPC needs about 10 µs to make one.
        self._kept_stub: Callable[[int, int, str], _Stub] = cache(
            lambda index, place, method: channels[index][place].unary_unary(method)
        )
        # Notified when a replica has been probed, and when the client is closed.
        self._changed = threading.Condition()
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
        call = OutgoingCall(
            method, request, timeout_s, deadline_s, request_id, Attempts(with_trace_context(self._metadata))
        )
        budget = self._budgets.of(method)
        budget.start_call()
        reply = None
        try:
            while reply is None:
                index = self._next_replica(call, cancel_scope)
                try:
                    reply = self._attempt(call, index, cancel_scope)
                except Transient as error:
                    pause_s = self._pause_s(call, index, error, cancel_scope)
                    if pause_s is None:
                        self._raise_mismatch(call, index, error)
                        raise
                    wait_for_event(cancel_scope.cancelled if cancel_scope else self._closed, pause_s)
        finally:
            budget.end_call(success=reply is not None)
        return reply

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

    def _next_replica(self, call: OutgoingCall, cancel_scope: CancelScope | None) -> int:
        """Wait until calls may start, and return the replica for the next attempt."""
        if not self._replicas.all_up:
            if not self._replicas.ready and not self._wait_until(
                lambda: self._replicas.ready, call.deadline_s, cancel_scope
            ):
                raise DeadlineExceeded(no_answer(call.timeout_s), request_id=call.request_id)
            self._start_probes()
        return self._replicas.next(call.attempts.unavailable)

    def _pause_s(
        self, call: OutgoingCall, index: int, error: Transient, cancel_scope: CancelScope | None
    ) -> float | None:
        """Return the seconds until a call is sent again, or None if it fails; if no replica is up, wait for one."""
        resend = self._failover.after(call, index, error, time.monotonic())
        if resend is Resend.AT_ONCE:
            return 0.0
        if resend is Resend.NEVER:
            return None
        if resend is Resend.WHEN_UP and not self._wait_until(
            lambda: self._replicas.any_up, call.deadline_s, cancel_scope
        ):
            return None
        return self._failover.pause_s(call, error, time.monotonic(), random.random())  # noqa: S311

    def _raise_mismatch(self, call: OutgoingCall, index: int, error: Transient) -> None:
        """Raise a better error if the server has never answered because only one side speaks TLS."""
        if self._replicas.any_answered:
            return
        if self._tls_mismatch.should_check(index, str(error)):
            self._tls_mismatch.check(index, call.deadline_s)
        if message := self._tls_mismatch.message(index):
            raise Unavailable(message, request_id=error.request_id) from error.__cause__

    def _attempt(self, call: OutgoingCall, index: int, cancel_scope: CancelScope | None) -> bytes:
        """Send a call once, to a replica."""
        stub = self._stub(index, call.method)
        sent_s = time.monotonic()
        left_s, metadata = call.deadline_s - sent_s, call.attempts.metadata
        # A health check has found the server up again, perhaps by another connection than that of the call.
        waits = call.attempts.waited
        try:
            if len(self._channels) > 1:
                reply = self._send_to_replica(call, index, stub, sent_s, cancel_scope)
            elif cancel_scope is None:  # A blocking call is faster than a future.
                reply = stub(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)
            else:
                reply = cancel_scope.run(
                    lambda: stub.future(call.request, timeout=left_s, metadata=metadata, wait_for_ready=waits)
                )
        except grpc.FutureCancelledError as error:
            if self._closed.is_set():
                raise Cancelled(CLOSED_DURING, request_id=call.request_id) from error
            raise Cancelled(CANCELLED_BY_SCOPE, request_id=call.request_id) from error
        except grpc.RpcError as error:
            if self._closed.is_set():
                raise Cancelled(CLOSED_DURING, request_id=call.request_id) from error
            failure = error_from_rpc(error, timeout_s=call.timeout_s, request_id=call.request_id)
            change = self._replicas.failed(index, failure, sent_s, time.monotonic(), is_silent=is_silent(error))
            self._note(index, change, str(failure))
            raise failure from error
        except ValueError as error:  # gRPC raises ValueError if the channel is closed; an interceptor may raise it too.
            if not self._closed.is_set():
                raise
            raise Cancelled(CLOSED_BEFORE, request_id=call.request_id) from error
        self._answered(index, sent_s)
        return reply

    def _send_to_replica(
        self,
        call: OutgoingCall,
        index: int,
        stub: _Stub,
        sent_s: float,
        cancel_scope: CancelScope | None,
    ) -> bytes:
        """Send a call to one of several replicas; raise `Unavailable` if the replica is put aside meanwhile."""
        in_flight = self._in_flight[index]
        sent: _Sent | None = None

        def start() -> _Sent:
            nonlocal sent
            future = stub.future(call.request, timeout=call.deadline_s - sent_s, metadata=call.attempts.metadata)
            sent = _Sent(future, call.patience_s, lambda sent: self._suspect(index, sent, sent_s))
            in_flight.add(sent)
            return sent

        try:
            return start().result() if cancel_scope is None else cancel_scope.run(start)
        except grpc.FutureCancelledError as error:
            if sent is None or not sent.moved:
                raise
            raise Unavailable(MOVED, request_id=call.request_id) from error
        finally:
            if sent is not None:
                in_flight.discard(sent)

    def _wait_until(self, condition: Callable[[], bool], deadline_s: float, cancel_scope: CancelScope | None) -> bool:
        """Probe replicas until a condition holds, and return whether it does at the deadline.

        Closing the client, or cancelling the scope, ends the wait too; the next attempt then raises `Cancelled`.
        """
        while not (self._closed.is_set() or (cancel_scope and cancel_scope.cancelled.is_set())):
            self._start_probes()
            with self._changed:
                if condition():
                    return True
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    return False
                until_s = min(deadline_s, self._replicas.next_probe_s)
                # Cancelling the scope wakes nobody.
                self._changed.wait(min(until_s - now_s, MAX_WAIT_S))
        return True

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

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
        self._record(index, code, call.result() if code is grpc.StatusCode.OK else b"")

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
    """A call on its way to one of several replicas.

    Args:
        future: the call.
        patience_s: seconds without an answer after which `suspect` is called, and again after as many.
        suspect: called with this object by the thread that waits for the answer.

    Attributes:
        moved: whether the call was cancelled because it moves to another replica.
        patience_s: as given.
    """

    def __init__(self, future: "grpc.Future[bytes]", patience_s: float, suspect: Callable[["_Sent"], None]) -> None:
        self.moved = False
        self._future = future
        self.patience_s = patience_s
        self._suspect = suspect

    def result(self) -> bytes:
        """Wait for the reply."""
        while True:
            try:
                return self._future.result(self.patience_s)
            except grpc.FutureTimeoutError:
                self._suspect(self)

    def cancel(self) -> None:
        """Cancel the call, on the server too."""
        self._future.cancel()

    def move(self) -> None:
        """Cancel the call, so that it moves to another replica."""
        self.moved = True
        self._future.cancel()


def _probe_outcome(code: grpc.StatusCode, reply: bytes) -> Probe:
    """Return the outcome of a probe that ended with a code, and with a reply if the code is OK."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Probe.SILENT
    if code is grpc.StatusCode.OK:
        return Probe.SERVING if reply == HEALTH_SERVING else Probe.REFUSED
    # Another error comes from a server or a proxy that does not offer the health service, so it cannot be down.
    return Probe.REFUSED if code in _DOWN_CODES else Probe.SERVING


def _close_all(channels: list[list[grpc.Channel]], pid: int) -> None:
    if os.getpid() != pid:  # Closing a channel of the parent would wait for calls that end only in the parent.
        _INHERITED.append(channels)
        return
    for channel in itertools.chain.from_iterable(channels):
        channel.close()
