"""Take the steps of calls in threads, as `Client` does."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol, TypeVar

from headwaiter_client.calls import steps
from headwaiter_client.calls.encode import EncodeCall
from headwaiter_client.calls.list_call import CallSettings
from headwaiter_client.calls.results import SequenceEncoding
from headwaiter_client.calls.run_steps import run_steps
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_client.thread_stream import ThreadStream
from headwaiter_client.transport.interface import CancelScope, Transport
from headwaiter_client.waiting import wait_for_result
from headwaiter_client.worker_threads import MIN_THREADS, Work, WorkerThreads

_Result = TypeVar("_Result")


class _Cancellable(Protocol):
    def cancel(self) -> None:
        """Cancel the calls in flight, and start no more."""


_ToCancel = TypeVar("_ToCancel", bound=_Cancellable)


class ThreadRunner:
    """The part of `Client` that waits: one call in the caller's thread, several in threads that all calls share."""

    def __init__(self, settings: CallSettings, transport: Transport) -> None:
        self._settings = settings
        self._transport = transport
        self._workers = WorkerThreads(max(MIN_THREADS, settings.max_in_flight))
        self._open: set[_Cancellable] = set()
        self._open_lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close the connection; calls in flight, and all later calls, raise `Cancelled`."""
        self._transport.close()
        with self._open_lock:
            self._closed = True
            to_cancel = list(self._open)
        for each in to_cancel:
            each.cancel()

    def _send_all(
        self, chunks: Iterable[Chunk], send: Callable[[Chunk], Steps[_Result]]
    ) -> Generator[_Result, None, None]:
        """Send chunks, up to `max_in_flight` at once, and yield their results in order.

        While fewer than `max_in_flight` chunks are in flight, the next chunk is sent before any result is yielded, so
        that the server always has work.
        """
        pending: deque[Work[_Result]] = deque()
        to_send = iter(chunks)
        with self._cancelled_at_end(CancelScope()) as scope:

            def start(chunk: Chunk) -> Work[_Result]:
                return self._workers.submit(lambda: self.run(send(chunk), scope))

            try:
                while True:
                    pending.extend(map(start, islice(to_send, self._settings.max_in_flight - len(pending))))
                    if not pending:
                        return
                    if self._workers.take(pending[0]):
                        # The threads are busy with other calls. This thread works too, so that the deadline holds.
                        pending[0].run()
                    result = wait_for_result(pending[0])
                    pending.popleft()
                    yield result
            finally:
                for work in pending:
                    work.cancel()

    def _stream(self, call: EncodeCall, *, ordered: bool) -> Generator[SequenceEncoding, None, None]:
        limits = self.run(call.limits())
        with self._cancelled_at_end(CancelScope()) as scope:

            def send(chunk: Chunk) -> list[SequenceEncoding]:
                return self.run(call.send_for_stream(chunk), scope)

            with self._cancelled_at_end(ThreadStream(call, limits, send, self._workers, ordered=ordered)) as stream:
                while (part := stream.next_part()) is not None:
                    yield from part

    @contextmanager
    def _cancelled_at_end(self, cancellable: _ToCancel) -> Iterator[_ToCancel]:
        """Cancel at the end of the block, or when the client is closed."""
        with self._open_lock:
            self._open.add(cancellable)
            closed = self._closed
        try:
            if closed:
                cancellable.cancel()
            yield cancellable
        finally:
            with self._open_lock:
                self._open.remove(cancellable)
            cancellable.cancel()

    def run(self, call: Steps[_Result], cancel_scope: CancelScope | None = None) -> _Result:
        """Take all steps of a call, and return the result of the call."""
        return run_steps(call, lambda step: self._take(step, cancel_scope))

    def _take(self, step: steps.Call | steps.Pause, cancel_scope: CancelScope | None) -> steps.Outcome:
        """Take one step, and return the outcome of the step."""
        if isinstance(step, steps.Pause):
            time.sleep(step.pause_s)
            return None
        return step.read(
            self._transport.unary(step.method, step.request, step.timeout_s, step.request_id, cancel_scope)
        )
