"""The engine's ends of the sockets to all front ends: answer their requests, and tell them of models."""

import asyncio
import logging
import pickle
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from headwaiter_proto.rules.errors import HeadwaiterError, Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.definitions import FrontEndMetrics
from headwaiter_server.metrics.page import Page, SharedPages, write_page
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.sums import Counts, Labels, Samples, SummedMetrics, add_samples, without_gauges
from headwaiter_server.metrics.totals import Totals
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

log = logging.getLogger(__name__)

# A front end that has not opened a tokenizer after this time hangs.
_PREPARE_S = 60.0
# The counts of a front end are read at this interval, so that a killed one loses few of them; reading them may take a
# tenth of the time.
_COUNT_INTERVAL_S, _COUNT_SHARE, _COUNT_TIMEOUT_S = 0.5, 0.1, 1.0
# A front end that has not answered for this time hangs.
_HUNG_S = 30.0


class FrontEndLinks:
    """The sockets to all front ends; there may be none.

    Args:
        engine: runs the models; the front ends follow its versions and its directory.
        recorder: what this process has counted.

    Attributes:
        restarts: counts the front ends that were started again.
        pages: writes the pages of metrics of all processes together.
    """

    def __init__(self, engine: LocalEngine, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        engine.versions.followers.append(self)
        engine.directory.subscribe(self._publish)
        # Front ends that know all models.
        self._joined: set[_FrontEndLink] = set()
        metrics = FrontEndMetrics(recorder.registry)
        self.restarts = metrics.restarts
        metrics.running.set_function(lambda: len(self._joined))
        # The models that the front ends know or will know, by number.
        self._announced: dict[int, tuple[ModelFacts, BundleTokenizer | None]] = {}
        self._published: asyncio.Future[list[Any]] | None = None
        # The number of each model that answers requests, by name and version.
        self._current: dict[tuple[str, str], int] = {}
        # What front ends had counted when they ended.
        self._ended_samples: Samples = {}
        self._ended_totals: dict[int, Totals] = {}
        self.pages = SharedPages(self._write_page)
        self._tasks = BackgroundTasks(on_error=lambda: log.error("counting a front end failed", exc_info=True))

    async def add(self, end: socket.socket, number: int) -> Link:
        """Answer the requests of a front end, and return the socket's link."""
        link = _FrontEndLink(self._engine, self, number)
        await link.open(end)
        link.closed.add_done_callback(lambda _: self._remove(link))
        self._tasks.start(self._count_forever(link))
        return link

    async def join(self, link: Link) -> None:
        """Tell a front end of all models, now and from now on.

        Raises:
            Unavailable: the front end has ended.
        """
        assert isinstance(link, _FrontEndLink)
        prepared: set[int] = set()
        # More models may be announced meanwhile, and others released.
        while missing := self._announced.keys() - prepared:
            await asyncio.gather(*(link.prepare(*self._announced[number]) for number in missing))
            prepared |= missing
        for number in prepared - self._announced.keys():
            link.notify("release", number)
        if link.closed.done():
            raise Unavailable(f"{link.other} has ended during its start")
        self._joined.add(link)
        self._publish()
        await self.published()

    def _publish(self) -> None:
        """Tell the front ends which models answer requests from now on, and whether the server is leaving."""
        directory = self._engine.directory
        versions = [each.status() for each in directory.known_versions]
        before, self._current = self._current, {each.labels: each.facts.number for each in directory.current}
        # The metrics of a version that was loaded again, from other files, start again from zero.
        again = {labels for labels, number in self._current.items() if before.get(labels, number) != number}
        self._ended_samples = {
            key: value for key, value in self._ended_samples.items() if _version_of(key[1]) not in again
        }
        current = list(self._current.values())
        started, leaving = directory.started, directory.leaving
        calls = (link.publish(versions, current, started=started, leaving=leaving) for link in self._joined)
        self._published = asyncio.gather(*calls, return_exceptions=True)

    async def published(self) -> None:
        """Wait until all front ends know what was published last."""
        if self._published is not None:
            await asyncio.shield(self._published)

    async def load(self, name: str) -> None:
        """Load a model; see `Engine`. All front ends answer requests with the model afterwards."""
        await self._engine.load(name)
        await self.published()

    async def unload(self, name: str) -> None:
        """Unload a model; see `Engine`. No front end answers new requests with the model afterwards."""
        await self._engine.unload(name)
        await self.published()

    async def prepare(self, facts: ModelFacts, tokenizer: BundleTokenizer | None) -> None:
        """Let all front ends open the tokenizer of a model; a front end that cannot is closed."""
        self._announced[facts.number] = facts, tokenizer
        await asyncio.gather(*(link.prepare(facts, tokenizer) for link in tuple(self._joined)))

    async def release(self, number: int) -> None:
        """Wait until no front end uses a model any more."""
        del self._announced[number]
        await asyncio.gather(*(link.call("release", number) for link in tuple(self._joined)), return_exceptions=True)
        self._ended_totals.pop(number, None)
        self._add_ended({})

    async def totals(self, numbers: Iterable[int]) -> list[Totals]:
        """Return the counts and the times of models, of all processes together."""
        sums = {each: self._engine.running_model(each).recorder.statistics.totals() for each in numbers}
        await self._count_all()
        for counted in (self._ended_totals, *(link.counts.totals for link in self._joined)):
            for number in sums.keys() & counted.keys():
                sums[number].add(counted[number])
        return list(sums.values())

    async def _write_page(self, accept: str) -> Page:
        """Return the page of metrics of all processes together."""
        await self._count_all()
        others = [self._ended_samples, *(link.counts.samples for link in self._joined)]
        exemplars = [link.counts.exemplars for link in self._joined]
        return await write_page(SummedMetrics(self._recorder.registry, others, exemplars), accept)

    async def _count_forever(self, link: "_FrontEndLink") -> None:
        counting_s = 0.0
        while not link.closed.done():
            pause_s = max(_COUNT_INTERVAL_S, min(counting_s / _COUNT_SHARE, _HUNG_S / 4))
            await asyncio.wait({link.closed}, timeout=pause_s)
            # A front end that starts has counted nothing, and answers late.
            if link in self._joined:
                started_s = time.monotonic()
                await link.count()
                counting_s = time.monotonic() - started_s
            if time.monotonic() - link.heard_s > _HUNG_S and not link.closed.done():
                log.error("%s has not answered for %g s, and is started again", link.other, _HUNG_S)
                link.close()

    async def _count_all(self) -> None:
        await asyncio.gather(*(link.count() for link in tuple(self._joined)))

    def _remove(self, link: "_FrontEndLink") -> None:
        self._joined.discard(link)
        self._add_ended(without_gauges(link.counts.samples))
        for number in link.counts.totals.keys() & self._announced.keys():
            self._ended_totals.setdefault(number, Totals()).add(link.counts.totals[number])

    def _add_ended(self, samples: Samples) -> None:
        """Keep what a front end had counted when it ended, but nothing of versions that are being unloaded."""
        known = {("", ""), *((facts.name, facts.version) for facts, _ in self._announced.values())}
        sums = add_samples([self._ended_samples, samples])
        self._ended_samples = {key: value for key, value in sums.items() if _version_of(key[1]) in known}


class _FrontEndLink(Link):
    """The engine's end of the socket to one front end.

    Attributes:
        counts: what the front end had counted when it was asked last.
    """

    def __init__(self, engine: LocalEngine, links: FrontEndLinks, number: int) -> None:
        methods: Methods = {
            "check_room": self._check_room,
            "check_attention_room": self._check_attention_room,
            "attend": self._attend,
            "describe": self._describe,
            "batches": self._batches,
            "totals": links.totals,
            "load": links.load,
            "unload": links.unload,
            "metrics": links.pages.get,
        }
        super().__init__(f"front end {number}", methods, self._receive, self._give_up, engine.max_unread_bytes)
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
        await self._call_or_close(_HUNG_S, "publish", versions, current, started, leaving)

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
            queue = self._engine.running_model(model).queue
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

    async def _check_room(self, model: int, tokens: int, deadline_s: float, priority: Priority) -> None:
        await self._engine.check_room(self._engine.running_model(model), tokens, deadline_s, priority)

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

    def __init__(self, link: _FrontEndLink, number: int, queue: ModelQueue) -> None:
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


def _version_of(labels: Labels) -> tuple[str, str]:
    """Return the model and the version among the labels of a series; empty strings if it has none."""
    values = dict(labels)
    return values.get("model", ""), values.get("version", "")
