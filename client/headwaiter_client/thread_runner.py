"""Take the steps of calls in threads, as `Client` does."""

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from headwaiter_client.calls import steps
from headwaiter_client.calls.list_call import CallSettings, next_candidates
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_client.errors import HeadwaiterError
from headwaiter_client.transport.interface import CancelScope, Transport

_Result = TypeVar("_Result")


class ThreadRunner:
    """The part of `Client` that waits: one call in the caller's thread, several in threads of their own."""

    _settings: CallSettings
    _transport: Transport

    def _send_all(
        self, chunks: Iterable[Chunk], send: Callable[[Chunk], Steps[_Result]], *, ordered: bool
    ) -> Generator[_Result, None, None]:
        """Send chunks, up to `max_in_flight` at once, and yield their results.

        While fewer than `max_in_flight` chunks are in flight, the next chunk is sent before any result is yielded, so
        that the server always has work. After a chunk that was sent early, finished results are yielded at once.
        """
        threads = ThreadPoolExecutor(self._settings.max_in_flight, "headwaiter")
        cancel_scope = CancelScope()
        pending: list[Future[_Result]] = []
        try:
            for chunk in chunks:
                pending.append(threads.submit(self._run, send(chunk), cancel_scope))
                while len(pending) == self._settings.max_in_flight or (
                    chunk.sent_early and any(call.done() for call in next_candidates(pending, ordered))
                ):
                    yield _next_result(pending, ordered)
            while pending:
                yield _next_result(pending, ordered)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            cancel_scope.cancel()

    def _run(self, call: Steps[_Result], cancel_scope: CancelScope | None = None) -> _Result:
        """Take all steps of a call, and return the result of the call."""
        outcome: bytes | HeadwaiterError | None = None
        try:
            while True:
                outcome = self._take(steps.advance(call, outcome), cancel_scope)
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _take(self, step: steps.Call | steps.Pause, cancel_scope: CancelScope | None) -> bytes | HeadwaiterError:
        """Take one step, and return the outcome of the step."""
        if isinstance(step, steps.Pause):
            time.sleep(step.pause_s)
            return b""
        try:
            return self._transport.unary(step.method, step.request, step.timeout_s, step.request_id, cancel_scope)
        except HeadwaiterError as error:
            return error


def _next_result(pending: list[Future[_Result]], ordered: bool) -> _Result:
    """Wait for the next result, and remove the future that returned it from `pending`."""
    candidates = next_candidates(pending, ordered)
    wait(candidates, return_when=FIRST_COMPLETED)
    future = next(future for future in candidates if future.done())
    pending.remove(future)
    return future.result()
