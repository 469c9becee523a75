"""Make a call to one replica after another until it succeeds or fails: the steps, without I/O, for both transports.

A call is a generator that yields steps. A transport takes each step and sends the outcome back into the generator, or
throws the `HeadwaiterError` of a failed step into it, until the generator returns the reply.
"""

import itertools
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeVar

import grpc

from headwaiter_client.calls.steps import HEALTH_METHOD, HEALTH_SERVING, no_answer
from headwaiter_client.transport.connection import Connection, capped_timeout_s
from headwaiter_client.transport.log import TransportLog
from headwaiter_client.transport.replicas import PROBE_TIMEOUT_S, Change, Probe, Replicas, concerns_all_calls
from headwaiter_client.transport.retries import Metadata, RetryBudget, RetryPolicy
from headwaiter_client.transport.tls_mismatch import tls_mismatch
from headwaiter_client.transport.trace_context import with_trace_context
from headwaiter_proto.rules.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceFailed,
    HeadwaiterError,
    Starting,
    Unavailable,
)
from headwaiter_proto.rules.status import DEVICE_FAILURES_KEY, FRONT_ENDS_KEY

# A replica that answers nothing for a quarter of a call's timeout is probed. When the call has waited as long again,
# the probe has ended, and half of the timeout is left for another replica.
_PATIENCE_SHARE = 0.25
_MIN_PATIENCE_S, _MAX_PATIENCE_S = 0.25, 1.0
_PROBE_SHARE = 0.8
# A client with this number of calls in flight opens several connections to a server with front ends.
_MANY_CALLS = 4
_MOST_CONNECTIONS = 16
# A probe ends with one of these codes if the server cannot be reached (UNAVAILABLE) or is stopping (CANCELLED).
_DOWN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Attempt:
    """A step: send a call to a replica once; the outcome is the reply."""

    index: int
    sent_s: float


@dataclass(slots=True)
class Pause:
    """A step: wait for `pause_s` seconds, at most until the event `changed` is set, if there is one."""

    pause_s: float
    changed: Any = None


@dataclass(slots=True)
class Blocking:
    """A step: run a function that may block for a second; the outcome is its result."""

    run: Callable[[], str | None]


Step: TypeAlias = Attempt | Pause | Blocking
Steps: TypeAlias = Generator[Step, Any, _Result]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A health check of a replica, in the background.

    Attributes:
        index: the replica.
        timeout_s: seconds until its deadline.
        wait_for_ready: whether the check waits for a connection.
        counts_front_ends: whether the check asks how many front ends a server has that is up; otherwise it is a probe.
    """

    index: int
    timeout_s: float
    wait_for_ready: bool
    counts_front_ends: bool = False


@dataclass(slots=True)
class OutgoingCall:
    """A call of a client: what is sent, until when, and what has happened so far.

    Attributes:
        method: the gRPC path.
        request: the serialized message.
        timeout_s: the timeout of the call, for messages.
        deadline_s: the time at which the call ends.
        request_id: the request's id, for errors.
        first_metadata: the metadata of the first attempt.
        attempts: number of attempts so far.
        device_failures: number of attempts that ended with `DeviceFailed`.
        unavailable: the replicas that were `Unavailable` to this call, since the call last waited.
        waited: whether the call has waited for a replica that was down.
    """

    method: str
    request: bytes
    timeout_s: float
    deadline_s: float
    request_id: str | None
    first_metadata: Metadata
    attempts: int = 0
    device_failures: int = 0
    unavailable: set[int] = field(default_factory=set)
    waited: bool = False

    @property
    def metadata(self) -> Metadata:
        """The metadata of the next attempt. A server isolates a request that has killed devices before."""
        if not self.device_failures:
            return self.first_metadata
        return (*self.first_metadata, (DEVICE_FAILURES_KEY, str(self.device_failures)))

    @property
    def name(self) -> str:
        """The name of the method, for log records."""
        return self.method.rpartition("/")[2]

    @property
    def patience_s(self) -> float:
        """Seconds without any answer of its replica after which the call asks for a probe."""
        return min(max(self.timeout_s * _PATIENCE_SHARE, _MIN_PATIENCE_S), _MAX_PATIENCE_S)


class Failover(ABC):
    """The replicas of a client, and the rules by which its calls are sent to them, and sent again.

    Args:
        connection: the addresses.
        retry: whether a failed call is sent again, and when.
        new_event: makes an event, for `Pause.changed`, and for the end of the client.
        clock: returns the time.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        connection: Connection,
        retry: RetryPolicy,
        new_event: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._connection, self._retry = connection, retry
        self._credentials = connection.credentials()
        self._metadata = connection.call_metadata()
        self._clock, self._jitter, self._new_event = clock, jitter, new_event
        self._closed = new_event()
        self._opening = threading.Lock()
        # Gives each call to a replica the next one of its connections.
        self._channel_numbers = itertools.count()
        self._forget()

    def _forget(self) -> None:
        """Begin without channels, and with replicas of which nothing is known."""
        count = len(self._connection.addresses)
        # Waiting for a server to start uses up no retries of calls.
        self._budget, self._health_budget = RetryBudget(self._retry), RetryBudget(self._retry)
        # Start at a random replica, so that clients that start together do not all call the same replica first.
        self._replicas = Replicas(count, int(count * self._jitter()) % count, probe_first=self._connection.balanced)
        self._log = TransportLog(self._connection.addresses)
        self._asked_for_front_ends = [False] * count
        # Set and replaced when a replica has been probed, and when the client is closed.
        self._changed = self._new_event()
        # The channels to each replica.
        self._channels = channels = [list[Any]() for _ in range(count)]
        # Kept, because gRPC needs about 10 µs to make one.
        self._kept_stub = cache(lambda index, place, method: channels[index][place].unary_unary(method))

    def _open(self) -> None:
        """Open a channel to each replica."""
        for index, channels in enumerate(self._channels):
            channels += self._new_channels(index, 1)
        self._start_probes(wait_for_ready=False)

    def _stub(self, index: int, method: str) -> Any:
        """Return what sends the next call to a replica."""
        return self._kept_stub(index, next(self._channel_numbers) % len(self._channels[index]), method)

    def _outgoing(self, method: str, request: bytes, timeout_s: float, request_id: str | None) -> OutgoingCall:
        """Return a call that begins now; see `Transport.unary` for the arguments."""
        timeout_s = capped_timeout_s(timeout_s, request_id)
        metadata = with_trace_context(self._metadata)
        return OutgoingCall(method, request, timeout_s, self._clock() + timeout_s, request_id, metadata)

    def _budget_of(self, call: OutgoingCall) -> RetryBudget:
        return self._health_budget if call.method == HEALTH_METHOD else self._budget

    def _steps(self, call: OutgoingCall) -> Steps[bytes]:
        """Make a call, and return the reply.

        Raises:
            HeadwaiterError: the call failed.
        """
        budget = self._budget_of(call)
        budget.start_call()
        reply: bytes | None = None
        try:
            while reply is None:
                if not self._replicas.all_up:
                    if not (yield from self._wait_until(lambda: self._replicas.ready, call.deadline_s)):
                        raise DeadlineExceeded(no_answer(call.timeout_s), request_id=call.request_id)
                    self._start_probes()
                now_s = self._clock()
                attempt = Attempt(self._replicas.next(now_s, call.unavailable), now_s)
                try:
                    reply = yield attempt
                except Cancelled:
                    raise
                except HeadwaiterError as error:
                    self._failed(call, attempt, error)
                    if not (yield from self._is_sent_again(call, attempt.index, error)):
                        yield from self._raise_mismatch(call, attempt.index, error)
                        raise
                else:
                    self._answered(attempt)
                finally:
                    self._replicas.ended(attempt.index)
        finally:
            budget.end_call(success=reply is not None)
        return reply

    def _is_sent_again(self, call: OutgoingCall, index: int, error: HeadwaiterError) -> Steps[bool]:
        """Count a failed attempt, and return whether the call is sent again, after the pause before that."""
        budget = self._budget_of(call)
        is_unavailable = isinstance(error, Unavailable)
        moves = is_unavailable and self._replicas.has_others({*call.unavailable, index})
        call.device_failures += isinstance(error, DeviceFailed)
        # A move to a replica that is up is part of the attempt, unless the call itself may have killed the device.
        is_free = moves and not isinstance(error, DeviceFailed) and budget.policy.max_attempts > 1
        call.attempts += not is_free and not isinstance(error, Starting)
        if not budget.policy.allows(error, call.attempts):
            return False
        if moves:
            call.unavailable.add(index)
            self._log.failover(call.name, index, error, self._clock())
            return True
        if is_unavailable:
            call.unavailable.clear()
            # A server that has never answered is more likely to have the wrong address than to be restarted, and a
            # health check asks for the present state.
            answered = self._replicas.any_answered or isinstance(error, Starting)
            if answered and call.method != HEALTH_METHOD:
                call.waited = True
                if not (yield from self._wait_until(lambda: self._replicas.any_up, call.deadline_s)):
                    return False
        left_s, jitter = call.deadline_s - self._clock(), self._jitter()
        pause_s: float | None
        if isinstance(error, Starting) and concerns_all_calls(error):
            # The call has waited for a health check that succeeds. The calls that waited come back one after another.
            pause_s = min(jitter * budget.policy.initial_backoff_s, max(0.0, left_s))
        else:
            pause_s = budget.pause_s(error, call.attempts, left_s, jitter)
        if pause_s is None:  # No retry may be left.
            return False
        self._log.retry(call.name, pause_s, call.attempts, error, self._clock())
        yield Pause(pause_s)
        return True

    def _wait_until(self, condition: Callable[[], bool], deadline_s: float) -> Steps[bool]:
        """Probe replicas until a condition holds, and return whether it does at the deadline."""
        while True:
            changed = self._changed  # Before the condition is checked, so that no change is missed.
            if condition():
                return True
            self._start_probes()
            now_s = self._clock()
            if now_s >= deadline_s:
                return False
            yield Pause(min(deadline_s, self._replicas.next_probe_s) - now_s, changed)

    def _raise_mismatch(self, call: OutgoingCall, index: int, error: HeadwaiterError) -> Steps[None]:
        """Raise a better error if the server has never answered because only one side speaks TLS."""
        if type(error) is not Unavailable or self._replicas.any_answered:
            return
        address, has_tls = self._connection.addresses[index], self._connection.tls is not None
        left_s = call.deadline_s - self._clock()
        message = yield Blocking(lambda: tls_mismatch(address, str(error), has_tls=has_tls, left_s=left_s))
        if message:
            raise Unavailable(message, request_id=error.request_id) from error.__cause__

    def _answered(self, attempt: Attempt) -> None:
        """Record that a replica has answered a call with a result."""
        index = attempt.index
        self._note(index, self._replicas.answered(index, attempt.sent_s, self._clock()))
        # A caller of one call at a time would gain nothing from a second connection.
        if not self._asked_for_front_ends[index] and self._budget.in_flight >= _MANY_CALLS:
            self._asked_for_front_ends[index] = True
            self._check_health(HealthCheck(index, PROBE_TIMEOUT_S, wait_for_ready=False, counts_front_ends=True))

    def _failed(self, call: OutgoingCall, attempt: Attempt, error: HeadwaiterError) -> None:
        """Record that a call failed."""
        is_silent = isinstance(error, DeadlineExceeded) and str(error) == no_answer(call.timeout_s)
        change = self._replicas.failed(attempt.index, error, attempt.sent_s, self._clock(), is_silent=is_silent)
        self._note(attempt.index, change, str(error))
        if is_silent:
            self._suspect(call, attempt)

    def _suspect(self, call: OutgoingCall, attempt: Attempt) -> bool:
        """Return whether a call without an answer leaves its replica; otherwise probe the replica, if that is due."""
        if self._replicas.is_silent(attempt.index):
            return True
        if self._replicas.suspect(attempt.index, attempt.sent_s, self._clock()):
            self._check_health(HealthCheck(attempt.index, _PROBE_SHARE * call.patience_s, wait_for_ready=False))
        return False

    def _note(self, index: int, change: Change | None, reason: str = "") -> None:
        """Act on the change of a replica."""
        if change is not None:
            self._log.change(index, change, reason, self._clock())
            self._start_probes()
            self._notify()

    def _start_probes(self, *, wait_for_ready: bool = True) -> None:
        """Start the probes that are due."""
        for index in self._replicas.due(self._clock()):
            self._check_health(HealthCheck(index, PROBE_TIMEOUT_S, wait_for_ready))

    def _health_checked(
        self,
        check: HealthCheck,
        code: grpc.StatusCode,
        reply: bytes,
        metadata: Iterable[tuple[str, str | bytes]] | None,
    ) -> None:
        """Record the end of a health check: its code, the reply if the code is OK, and the trailing metadata."""
        if check.counts_front_ends:
            more = _more_connections(metadata)
            with self._opening:
                if more and not self._closed.is_set():
                    self._channels[check.index] += self._new_channels(check.index, more)
        elif not self._closed.is_set():
            self._probed(check.index, _probe_outcome(code, reply), f"its health check ended with {code.name}")

    def _probed(self, index: int, outcome: Probe, reason: str) -> None:
        """Record the end of a probe."""
        change = self._replicas.probed(index, outcome, self._clock())
        if change is None:
            self._notify()  # The time of the next probe has changed.
        else:
            self._note(index, change, reason)

    def _notify(self) -> None:
        """End the pauses that wait for a change."""
        changed, self._changed = self._changed, self._new_event()
        changed.set()

    @abstractmethod
    def _new_channels(self, index: int, count: int) -> list[Any]:
        """Return new channels to a replica."""

    @abstractmethod
    def _check_health(self, check: HealthCheck) -> None:
        """Check a replica's health in the background, and call `_health_checked`."""


def _more_connections(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return how many connections to open besides the first, given the trailing metadata of a health check.

    The kernel gives each connection to a front end at random. With two connections for each front end, few get none.
    """
    for key, value in metadata or ():
        if key == FRONT_ENDS_KEY and re.fullmatch("[0-9]{1,3}", str(value)):
            return max(0, min(2 * int(value), _MOST_CONNECTIONS) - 1)
    return 0


def _probe_outcome(code: grpc.StatusCode, reply: bytes) -> Probe:
    """Return the outcome of a probe that ended with a code, and with a reply if the code is OK."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Probe.SILENT
    if code is grpc.StatusCode.OK:
        return Probe.SERVING if reply == HEALTH_SERVING else Probe.REFUSED
    # Another error comes from a server or a proxy that does not offer the health service, so it cannot be down.
    return Probe.REFUSED if code in _DOWN_CODES else Probe.SERVING
