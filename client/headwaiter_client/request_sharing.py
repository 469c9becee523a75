"""Shared requests of both clients.

Of `Client`, the thread of one of the calls sends the request; of `AsyncClient`, a task of its own. The others wait for
their parts.
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.shared_requests import Caller, SharedRequest, SharedRequests
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_client.waiting import MAX_WAIT_S

_SHORTEST_WAIT_S = 0.001
_Run: TypeAlias = Callable[[Steps[Any]], Any]
_RunAsync: TypeAlias = Callable[[Steps[Any]], Awaitable[Any]]


class ThreadSharing:
    """Sends shared requests in the threads of the calls.

    Args:
        servers: see `SharedRequests`.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._reset()

    def send(self, call: ListCall[Any], chunk: Chunk, run: _Run) -> Any:
        """Send a call of one chunk, in a request that it shares with others if possible, and return its result.

        Args:
            call: the call.
            chunk: all sequences of the call.
            run: takes the steps of a call.

        Raises:
            HeadwaiterError: the call failed.
        """
        woken: SimpleQueue[None] = SimpleQueue()  # It wakes a thread faster than an event.
        now_s = time.monotonic()
        caller = Caller(call, chunk, now_s, lambda: woken.put(None))
        if not self._requests.may_share(caller, now_s):
            return run(self._requests.send_alone(call, chunk))
        if os.getpid() != self._pid:  # The parent of this process may have had calls in flight.
            self._reset()
        with self._lock:
            self._calls += 1
            self._requests.add(caller)
        try:
            self._start_soon()
            _wait(woken, caller)
            if caller.to_send and not caller.to_send.is_single:
                run(caller.to_send.send())
            elif not caller.to_send:
                caller.expire()
            result = caller.result()
            if result is None:
                result = run(self._requests.send_alone(call, chunk))
            return result
        finally:
            self._leave(caller)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._requests = SharedRequests(self._servers)
        self._calls = 0
        self._lock = threading.Lock()
        self._will_start = False

    def _start_soon(self) -> None:
        """Start requests, after other threads that the same reply has woken had a chance to add their next calls."""
        with self._lock:
            if self._will_start:
                return
            self._will_start = True
            has_company = self._calls > 1
        try:
            if has_company:
                time.sleep(0)
        finally:
            with self._lock:
                self._will_start = False
                self._start()

    def _leave(self, caller: Caller) -> None:
        """Forget a call that has ended; if its thread has sent a request, start the next one."""
        with self._lock:
            self._calls -= 1
            if caller.request is None:
                self._requests.discard(caller)
            if caller.to_send:
                self._requests.end(caller.to_send, time.monotonic())
                self._start()
        if caller.to_send:
            caller.to_send.let_go()

    def _start(self) -> None:
        """Give the requests that may be sent now to threads; `self._lock` is held."""
        while request := self._requests.next(time.monotonic()):
            # The thread whose call ends last never waits for longer than its caller wants.
            sender = max(request.callers, key=lambda caller: caller.deadline_s)
            sender.to_send = request
            sender.notify()


def _wait(woken: "SimpleQueue[None]", caller: Caller) -> None:
    """Wait until a call has an outcome or a request to send, or its time is up."""
    while (left_s := caller.deadline_s - time.monotonic()) > 0 or caller.ends_with_request:
        with suppress(Empty):
            woken.get(timeout=min(max(left_s, _SHORTEST_WAIT_S), MAX_WAIT_S))
            return


class TaskSharing:
    """Sends shared requests in one event loop.

    Args:
        servers: see `SharedRequests`.
    """

    def __init__(self, servers: int) -> None:
        self._requests = SharedRequests(servers)
        self._tasks: dict[SharedRequest, asyncio.Task[None]] = {}
        self._callers: dict[Caller, None] = {}
        self._will_start = False
        # One timer for all calls, because a timer for each costs more than the rest of its wait.
        self._expires_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, call: ListCall[Any], chunk: Chunk, run: _RunAsync) -> Any:
        """Send a call of one chunk; see `ThreadSharing.send`."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def notify() -> None:
            if not settled.done():  # The task may have been cancelled.
                settled.set_result(None)

        now_s = time.monotonic()
        caller = Caller(call, chunk, now_s, notify)
        if not self._requests.may_share(caller, now_s):
            return await run(self._requests.send_alone(call, chunk))
        self._callers[caller] = None
        self._requests.add(caller)
        self._start_soon(run)
        self._expire_at(caller.deadline_s)
        try:
            await settled
            result = caller.result()
            if result is None:
                result = await run(self._requests.send_alone(call, chunk))
            return result
        finally:
            self._leave(caller, run)

    def _start_soon(self, run: _RunAsync) -> None:
        """Start requests at the end of this turn of the event loop, so that all calls of the turn may share them."""
        if not self._will_start:
            self._will_start = True
            asyncio.get_running_loop().call_soon(self._start, run)

    def _start(self, run: _RunAsync) -> None:
        self._will_start = False
        while request := self._requests.next(time.monotonic()):
            if request.is_single:
                request.let_go()
            else:
                self._tasks[request] = asyncio.create_task(self._send(request, run))

    async def _send(self, request: SharedRequest, run: _RunAsync) -> None:
        try:
            await run(request.send())
        finally:
            request.let_go()
            del self._tasks[request]
            self._end(request, run)

    def _end(self, request: SharedRequest, run: _RunAsync) -> None:
        self._requests.end(request, time.monotonic())
        if self._requests:
            # Callers that have their results now may make their next calls in the same turn.
            self._start_soon(run)

    def _expire_at(self, time_s: float) -> None:
        if time_s < self._expires_s:
            self._expires_s = time_s
            if self._timer:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(time_s - time.monotonic(), self._expire)

    def _expire(self) -> None:
        now_s, self._expires_s = time.monotonic(), math.inf
        for caller in tuple(self._callers):
            if caller.deadline_s <= now_s:
                caller.expire()
        self._expire_at(min((each.deadline_s for each in self._callers if each.deadline_s > now_s), default=math.inf))

    def _leave(self, caller: Caller, run: _RunAsync) -> None:
        """Forget a call that has ended, and cancel its request if no other call waits for the request."""
        del self._callers[caller]
        caller.settle(None)
        if caller.request is None:
            self._requests.discard(caller)
        elif caller.request.is_single:
            self._end(caller.request, run)
        elif (task := self._tasks.get(caller.request)) and not caller.request.is_wanted:
            task.cancel()
