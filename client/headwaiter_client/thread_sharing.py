"""Shared requests of the blocking client: one of the calls sends the request, and the others wait for their parts."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from headwaiter_client.calls.list_call import ListCall, Take
from headwaiter_client.calls.results import ListResult
from headwaiter_client.calls.shared_requests import Caller, SharedRequest, SharedRequests
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_client.waiting import MAX_WAIT_S

_SHORTEST_WAIT_S = 0.001
Run: TypeAlias = Callable[[Steps[Any]], Any]
_Result = TypeVar("_Result", bound=ListResult)
_Taken = TypeVar("_Taken")


class _Waiting:
    """A thread that waits for its turn to send a request, or for the outcome of its call."""

    def __init__(self) -> None:
        # A lock wakes a thread faster than an event.
        self._woken = threading.Lock()
        self._woken.acquire()
        self.to_send: SharedRequest | None = None

    def wake(self) -> None:
        """Let the thread go on."""
        with suppress(RuntimeError):  # It was woken before, and has not waited since, because its time is up.
            self._woken.release()

    def wait(self, caller: Caller) -> None:
        """Wait until the thread is woken, or the time of its call is up."""
        while (left_s := caller.deadline_s - time.monotonic()) > 0 or caller.ends_with_request:
            if self._woken.acquire(timeout=min(max(left_s, _SHORTEST_WAIT_S), MAX_WAIT_S)):
                return


class ThreadSharing:
    """Sends shared requests in the threads of the calls.

    Args:
        servers: see `SharedRequests`.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._reset()

    def send(self, call: ListCall[_Result], chunk: Chunk, take: Take[_Result, _Taken], run: Run) -> _Taken:
        """Send a call of one chunk, in a request that it shares with others if possible, and return its result.

        Args:
            call: the call.
            chunk: all sequences of the call.
            take: returns the result of the call.
            run: takes the steps of a call.

        Raises:
            HeadwaiterError: the call failed.
        """
        waiting = _Waiting()
        now_s = time.monotonic()
        caller = Caller(call, chunk, take, now_s, waiting.wake)
        if not self._requests.may_share(caller, now_s):
            return self._send_alone(call, chunk, take, run)
        if os.getpid() != self._pid:  # The parent of this process may have had calls in flight.
            self._reset()
        with self._lock:
            self._waiting[caller] = waiting
            self._requests.add(caller)
        try:
            self._start_soon()
            waiting.wait(caller)
            if waiting.to_send and not waiting.to_send.is_single:
                run(waiting.to_send.send())
            elif not waiting.to_send:
                caller.expire()
            result: _Taken | None = caller.result()
            if result is None:
                result = self._send_alone(call, chunk, take, run)
            return result
        finally:
            self._leave(caller, waiting)

    def _send_alone(self, call: ListCall[_Result], chunk: Chunk, take: Take[_Result, _Taken], run: Run) -> _Taken:
        start_s = time.monotonic()
        result: _Taken = run(call.send_all(chunk, take))
        self._requests.answered(time.monotonic() - start_s)
        return result

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._requests = SharedRequests(self._servers)
        self._waiting: dict[Caller, _Waiting] = {}
        self._lock = threading.Lock()
        self._will_start = False

    def _start_soon(self) -> None:
        """Start requests, after other threads that the same reply has woken had a chance to add their next calls."""
        with self._lock:
            if self._will_start:
                return
            self._will_start = True
            has_company = len(self._waiting) > 1
        try:
            if has_company:
                time.sleep(0)
        finally:
            with self._lock:
                self._will_start = False
                self._start()

    def _leave(self, caller: Caller, waiting: _Waiting) -> None:
        """Forget a call that has ended; if its thread has sent a request, start the next one."""
        with self._lock:
            del self._waiting[caller]
            if caller.request is None:
                self._requests.discard(caller)
            if waiting.to_send:
                self._requests.end(waiting.to_send, time.monotonic())
                self._start()
        if waiting.to_send:
            waiting.to_send.let_go()

    def _start(self) -> None:
        """Give the requests that may be sent now to threads; `self._lock` is held."""
        while request := self._requests.next(time.monotonic()):
            # The thread whose call ends last never waits for longer than its caller wants.
            sender = self._waiting[max(request.callers, key=lambda caller: caller.deadline_s)]
            sender.to_send = request
            sender.wake()
