"""The interface between calls and transports: a transport carries the bytes of one call to a server and back."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Cancellable(Protocol):
    """A call in flight, such as a `grpc.Future`, or several."""

    def cancel(self) -> object:
        """Cancel the calls, and start no more."""


class CancelScope:
    """A group of calls, made by one or several threads, that are cancelled together.

    Attributes:
        cancelled: set when the calls are cancelled; a pause before a retry waits for it.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._calls: set[Cancellable] = set()
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, call: Cancellable) -> Iterator[None]:
        """Cancel a call if the scope is cancelled during the block, or was cancelled before."""
        with self._lock:
            self._calls.add(call)
        try:
            if self.cancelled.is_set():
                call.cancel()
            yield
        finally:
            with self._lock:
                self._calls.remove(call)

    def cancel(self) -> None:
        """Cancel the calls in flight, on the server too; later calls of the scope are not started."""
        self.cancelled.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


class Transport(Protocol):
    """Carries the calls of a `Client`. Several threads may share a transport."""

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        cancel_scope: CancelScope | None = None,
        /,
    ) -> bytes:
        """Make a call and return the reply.

        Args:
            method: the gRPC path, such as "/headwaiter.v1.Encoder/Encode".
            request: the serialized message.
            timeout_s: seconds until the deadline.
            request_id: the request's id, for errors.
            cancel_scope: the scope that may cancel the call.

        Raises:
            HeadwaiterError: the call failed.
        """

    def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""


class AsyncTransport(Protocol):
    """Carries the calls of an `AsyncClient`, in one event loop."""

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, /) -> bytes:
        """Make a call as `Transport.unary` does. Cancelling the task cancels the call on the server too."""

    async def close(self) -> None:
        """End calls in flight, and all later calls, with `Cancelled`."""
