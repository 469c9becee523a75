"""The engine's end of the socket to one front end: answer its requests, and tell it of models."""

import asyncio
import logging
import pickle
import time
from contextlib import suppress
from typing import Any

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.sums import Counts
from headwaiter_server.models.model_version import VersionStatus
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.processes.link import Link, Methods, Refused
from headwaiter_server.processes.messages import Kind, read_request, write_error, write_outcome
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Interval, Outcome
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.queued_request import QueuedRequest
from headwaiter_server.settings.tenants import Tenant

log = logging.getLogger(__name__)

# A front end that has not opened a tokenizer after this time hangs.
_PREPARE_S = 60.0
# A front end that has sent nothing for this time hangs. It is asked for its counts every few seconds.
_SILENT_S = 30.0
_COUNT_TIMEOUT_S = 1.0


class FrontEndLink(Link):
    """The engine's end of the socket to one front end.

    Args:
        engine: answers the requests.
        number: the number of the front end.
        methods: what the front end may also call, about all processes.

    Attributes:
        counts: what the front end had counted when it was asked last.
    """

    def __init__(self, engine: LocalEngine, number: int, methods: Methods) -> None:
        own_methods: Methods = {
            "check_room": self._check_room,
            "check_attention_room": self._check_attention_room,
            "attend": self._attend,
            "describe": self._describe,
            "batches": self._batches,
        }
        super().__init__(
            f"front end {number}", {**methods, **own_methods}, self._receive, self._give_up, engine.max_unread_bytes
        )
        self._engine = engine
        self._requests: dict[int, _Waiting] = {}
        self._counting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counting.set_result(None)
        self.counts = Counts()

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the sequences of the front end, which nobody waits for any more."""
        super().connection_lost(exc)
        for number in tuple(self._requests):
            self._give_up(number)

    async def prepare(self, facts: ModelFacts, tokenizer: BundleTokenizer | None) -> None:
        """Let the front end open the tokenizer of a model, or close the link."""
        await self._call_or_close(_PREPARE_S, "prepare", facts, None if tokenizer is None else tokenizer.file)

    async def publish(self, versions: list[VersionStatus], current: list[int], *, started: bool, leaving: bool) -> None:
        """Tell the front end which models answer requests, or close the link."""
        await self._call_or_close(_SILENT_S, "publish", versions, current, started, leaving)

    async def _call_or_close(self, timeout_s: float, method: str, *arguments: Any) -> None:
        waits, loop = True, asyncio.get_running_loop()

        def close(problem: str) -> None:
            if waits and not self.closed.done():
                log.error("%s cannot %s a model, and is started again: %s", self.other, method, problem)
                self.close()

        # After a pause of this process, the loop finds the answer and the end of the time together. `asyncio.timeout`
        # would drop the answer; what the timer schedules runs after the answer.
        timer = loop.call_later(timeout_s, loop.call_soon, close, f"no answer after {timeout_s:g} s")
        try:
            await self.call(method, *arguments)
        except HeadwaiterError as error:
            close(one_line(error))
        finally:
            waits = False
            timer.cancel()

    def close_if_silent(self) -> None:
        """Close the link to a front end that hangs; the supervisor then starts the front end again."""
        if time.monotonic() - self.heard_s > _SILENT_S and not self.closed.done():
            log.error("%s has not answered for %g s, and is started again", self.other, _SILENT_S)
            self.close()

    async def count(self) -> None:
        """Read what the front end has counted; keep the latest counts if it does not answer soon."""
        # A slow answer counts as a sign of life, so the call goes on.
        if self._counting.done():
            self._counting = asyncio.create_task(self._read_counts())
        await asyncio.wait({self._counting}, timeout=_COUNT_TIMEOUT_S)

    async def _read_counts(self) -> None:
        with suppress(HeadwaiterError):
            self.counts = await asyncio.to_thread(pickle.loads, await self.call("counts"))

    def _receive(self, number: int, payload: bytes) -> None:
        """Queue a request."""
        try:
            model, job = read_request(payload)
            running = self._engine.running_model(model)
            running.used_s, queue = time.monotonic(), running.queue
            waiting = _Waiting(self, number, queue)
            waiting.request = QueuedRequest(queue, job, waiting)
            self._engine.scheduler.enqueue(queue, waiting.request)
        except HeadwaiterError as error:
            self.send(Kind.REFUSED, number, write_error(error))
        except Exception as error:
            log.exception("a request of %s failed", self.other)
            self.send(Kind.RAISED, number, write_error(HeadwaiterError(f"a request between processes failed: {error}")))
        else:
            self._requests[number] = waiting

    def answer(self, waiting: "_Waiting", kind: Kind, parts: list[Any]) -> None:
        """Send the answer to a request."""
        self.send(kind, waiting.number, parts)
        self._requests.pop(waiting.number, None)
        waiting.queue.end_request(waiting.request)

    def _give_up(self, number: int) -> None:
        waiting = self._requests.pop(number, None)
        if waiting is not None:
            waiting.is_done = True
            self._engine.scheduler.withdraw(waiting.queue, waiting.request)

    async def _check_room(self, model: int, tokens: int, deadline_s: float, priority: Priority, tenant: Tenant) -> None:
        await self._engine.check_room(self._engine.running_model(model), tokens, deadline_s, priority, tenant)

    async def _check_attention_room(self, model: int) -> None:
        await self._engine.check_attention_room(self._engine.running_model(model))

    async def _attend(
        self, model: int, sequence: Any, selection: AttentionSelection, deadline_s: float
    ) -> tuple[AttentionWeights, Interval]:
        queued = False

        def note_queued() -> None:
            nonlocal queued
            queued = True

        try:
            running = self._engine.running_model(model)
            running.used_s = time.monotonic()
            return await self._engine.attend(running, sequence, selection, deadline_s=deadline_s, on_queued=note_queued)
        except HeadwaiterError as error:
            if queued:
                raise
            raise Refused(error) from None

    async def _describe(self, model: int) -> bytes:
        return (await self._engine.describe(self._engine.running_model(model))).SerializeToString()

    async def _batches(self, models: list[int]) -> bytes:
        return (await self._engine.batches(list(map(self._engine.running_model, models)))).SerializeToString()


class _Waiting:
    """A request of a front end that waits for its answer; see `scheduling.queued_request.AnswerReceiver`."""

    __slots__ = ("_link", "is_done", "number", "queue", "request")

    request: QueuedRequest

    def __init__(self, link: FrontEndLink, number: int, queue: ModelQueue) -> None:
        self._link, self.number, self.queue, self.is_done = link, number, queue, False

    def done(self) -> bool:
        """Return whether the answer is sent, or no longer wanted."""
        return self.is_done

    def set_result(self, result: Outcome, /) -> None:
        """Send the answer."""
        self.is_done = True
        self._link.answer(self, *write_outcome(result, sampled=bool(self.request.job.trace)))

    def set_exception(self, exception: HeadwaiterError, /) -> None:
        """Send the error."""
        self.is_done = True
        self._link.answer(self, Kind.RAISED, write_error(exception))
