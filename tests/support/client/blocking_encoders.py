"""Fake transports that hold requests back, for tests of the requests that are in flight at once."""

import asyncio
import threading
from typing import Any

from headwaiter_client import AsyncFakeEncoder, FakeEncoder


class BlockingEncoder(FakeEncoder):
    """Holds requests back until `release` is set.

    Args:
        release_after: None holds back all requests except "r", until the test sets `release`. A number holds back only
            the request "r", and sets `release` after this number of other requests has been answered.
    """

    def __init__(self, release_after: int | None = None) -> None:
        super().__init__()
        self.release = threading.Event()
        self._release_after = release_after

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, *scope: Any) -> bytes:
        if request_id and (request_id == "r") is (self._release_after is not None):
            assert self.release.wait(30)
        reply = super().unary(method, request, timeout_s, request_id, *scope)
        if request_id and len(self.requests) == self._release_after:
            self.release.set()
        return reply


class AsyncBlockingEncoder(AsyncFakeEncoder):
    """`BlockingEncoder` for asyncio.

    Attributes:
        max_in_flight: most requests that were in flight at once.
        three_in_flight: set when three requests are in flight.
        cancelled: ids of the requests that were cancelled.
    """

    def __init__(self, release_after: int | None = None) -> None:
        self._fake = FakeEncoder()
        super().__init__(self._fake)
        self._release_after = release_after
        self.release = asyncio.Event()
        self.three_in_flight = asyncio.Event()
        self._in_flight = self.max_in_flight = 0
        self.cancelled: list[str] = []

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        if request_id is None:
            return await super().unary(method, request, timeout_s)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        if self.max_in_flight == 3:
            self.three_in_flight.set()
        try:
            await asyncio.sleep(0)
            if (request_id == "r") is (self._release_after is not None):
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise
        finally:
            self._in_flight -= 1
        reply = await super().unary(method, request, timeout_s, request_id)
        if len(self._fake.requests) == self._release_after:
            self.release.set()
        return reply


class ConcurrencyCounter(FakeEncoder):
    """Answers requests in groups that fill a barrier, and counts the requests in flight.

    Attributes:
        max_in_flight: most requests that were in flight at once.
    """

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self.max_in_flight = 0
        self._in_flight = 0
        self._barrier = barrier
        self._lock = threading.Lock()

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, *scope: Any) -> bytes:
        if not request_id:
            return super().unary(method, request, timeout_s, request_id, *scope)
        with self._lock:
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        self._barrier.wait(30)
        with self._lock:
            self._in_flight -= 1
        return super().unary(method, request, timeout_s, request_id, *scope)
