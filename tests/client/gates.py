"""Transports that hold requests back, to see which are on their way at once."""

import asyncio
import threading

from headwaiter_client import AsyncFakeEncoder, FakeEncoder
from headwaiter_client.transport.grpc_transport import Flight


class Gate(FakeEncoder):
    """Holds requests back: request "r" until so many others have been answered, or all but "r" until told."""

    def __init__(self, others: int | None = None) -> None:
        super().__init__()
        self.opened = threading.Event()
        self._others = others

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        if request_id and (request_id == "r") is (self._others is not None):
            assert self.opened.wait(30)
        reply = super().unary(method, request, timeout_s, request_id, flight)
        if request_id and len(self.requests) == self._others:
            self.opened.set()
        return reply


class AsyncGate(AsyncFakeEncoder):
    """The same for asyncio; notes how many requests there are at once, and which were cancelled."""

    def __init__(self, others: int | None = None) -> None:
        self._fake = FakeEncoder()
        super().__init__(self._fake)
        self._others = others
        self.opened = asyncio.Event()
        self.three = asyncio.Event()
        self._inside = self.most = 0
        self.cancelled: list[str] = []

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        if request_id is None:
            return await super().unary(method, request, timeout_s)
        self._inside += 1
        self.most = max(self.most, self._inside)
        if self.most == 3:
            self.three.set()
        try:
            await asyncio.sleep(0)
            if (request_id == "r") is (self._others is not None):
                await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise
        finally:
            self._inside -= 1
        reply = await super().unary(method, request, timeout_s, request_id)
        if len(self._fake.requests) == self._others:
            self.opened.set()
        return reply


class Crowd(FakeEncoder):
    """Lets requests pass by threes only, and notes how many there are at once."""

    def __init__(self, door: threading.Barrier) -> None:
        super().__init__()
        self.most = 0
        self._inside = 0
        self._door = door
        self._lock = threading.Lock()

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        if not request_id:
            return super().unary(method, request, timeout_s, request_id, flight)
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        self._door.wait(30)
        with self._lock:
            self._inside -= 1
        return super().unary(method, request, timeout_s, request_id, flight)
