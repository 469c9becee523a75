"""Shared requests of the asyncio client: a task sends each, and the calls wait for their parts."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.shared_requests import Caller, SharedRequest, SharedRequests
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps

Run: TypeAlias = Callable[[Steps[Any]], Awaitable[Any]]


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

    async def send(self, call: ListCall[Any], chunk: Chunk, run: Run) -> Any:
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

    def _start_soon(self, run: Run) -> None:
        """Start requests at the end of this turn of the event loop, so that all calls of the turn may share them."""
        if not self._will_start:
            self._will_start = True
            asyncio.get_running_loop().call_soon(self._start, run)

    def _start(self, run: Run) -> None:
        self._will_start = False
        while request := self._requests.next(time.monotonic()):
            if request.is_single:
                request.let_go()
            else:
                self._tasks[request] = asyncio.create_task(self._send(request, run))

    async def _send(self, request: SharedRequest, run: Run) -> None:
        try:
            await run(request.send())
        finally:
            request.let_go()
            del self._tasks[request]
            self._end(request, run)

    def _end(self, request: SharedRequest, run: Run) -> None:
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

    def _leave(self, caller: Caller, run: Run) -> None:
        """Forget a call that has ended, and cancel its request if no other call waits for the request."""
        del self._callers[caller]
        caller.settle(None)
        if caller.request is None:
            self._requests.discard(caller)
        elif caller.request.is_single:
            self._end(caller.request, run)
        elif (task := self._tasks.get(caller.request)) and not caller.request.is_wanted:
            task.cancel()
