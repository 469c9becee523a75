"""The engine's ends of the sockets to all front ends: tell them of models, and add up what they count."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterable
from typing import Any

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.definitions import FrontEndMetrics
from headwaiter_server.metrics.page import Page, SharedPages, write_page
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.sums import EndedCounts, SummedMetrics, Version
from headwaiter_server.metrics.totals import Totals
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.processes.front_end_link import FrontEndLink
from headwaiter_server.processes.link import Link, Methods

log = logging.getLogger(__name__)

# The counts of a front end are read at this interval, so that a killed one loses few of them; reading them may take a
# tenth of the time.
_COUNT_INTERVAL_S, _LONGEST_COUNT_INTERVAL_S, _COUNT_SHARE = 0.5, 7.5, 0.1


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
        self._joined: set[FrontEndLink] = set()
        metrics = FrontEndMetrics(recorder.registry)
        self.restarts = metrics.restarts
        metrics.running.set_function(lambda: len(self._joined))
        # The models that the front ends know or will know, by number.
        self._announced: dict[int, tuple[ModelFacts, BundleTokenizer | None]] = {}
        self._published: asyncio.Future[list[Any]] | None = None
        # The number of each model that answers requests, by name and version.
        self._current: dict[tuple[str, str], int] = {}
        self._ended = EndedCounts()
        self.pages = SharedPages(self._write_page)
        self._methods: Methods = {
            "totals": self._totals,
            "load": self._load,
            "load_on_demand": self._load_on_demand,
            "unload": self._unload,
            "metrics": self.pages.get,
        }
        self._tasks = BackgroundTasks(on_error=lambda: log.error("counting a front end failed", exc_info=True))

    async def add(self, end: socket.socket, number: int) -> Link:
        """Answer the requests of a front end, and return the socket's link."""
        link = FrontEndLink(self._engine, number, self._methods)
        await link.open(end)
        link.closed.add_done_callback(lambda _: self._remove(link))
        self._tasks.start(self._count_forever(link))
        return link

    async def join(self, link: Link) -> None:
        """Tell a front end of all models, now and from now on.

        Raises:
            Unavailable: the front end has ended.
        """
        assert isinstance(link, FrontEndLink)
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
        self._ended.keep(self._announced_versions - again, self._announced)
        current = list(self._current.values())
        started, leaving = directory.started, directory.leaving
        calls = (link.publish(versions, current, started=started, leaving=leaving) for link in self._joined)
        self._published = asyncio.gather(*calls, return_exceptions=True)

    async def published(self) -> None:
        """Wait until all front ends know what was published last."""
        if self._published is not None:
            await asyncio.shield(self._published)

    async def _load(self, name: str) -> None:
        """Load a model; see `Engine`. All front ends answer requests with the model afterwards."""
        await self._engine.load(name)
        await self.published()

    async def _load_on_demand(self, name: str) -> None:
        """Load a model that a request needs; see `Engine`. All front ends know afterwards how the load ended."""
        await self._engine.load_on_demand(name)
        await self.published()

    async def _unload(self, name: str) -> None:
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
        self._ended.keep(self._announced_versions, self._announced)

    async def _totals(self, numbers: Iterable[int]) -> list[Totals]:
        """Return the counts and the times of models, of all processes together."""
        sums = {each: self._engine.running_model(each).recorder.statistics.totals() for each in numbers}
        await self._count_all()
        for counted in (self._ended.totals, *(link.counts.totals for link in self._joined)):
            for number in sums.keys() & counted.keys():
                sums[number].add(counted[number])
        return list(sums.values())

    async def _write_page(self, accept: str) -> Page:
        """Return the page of metrics of all processes together."""
        await self._count_all()
        others = [self._ended.samples, *(link.counts.samples for link in self._joined)]
        exemplars = [link.counts.exemplars for link in self._joined]
        return await write_page(SummedMetrics(self._recorder.registry, others, exemplars), accept)

    async def _count_forever(self, link: FrontEndLink) -> None:
        counting_s = 0.0
        while not link.closed.done():
            pause_s = max(_COUNT_INTERVAL_S, min(counting_s / _COUNT_SHARE, _LONGEST_COUNT_INTERVAL_S))
            await asyncio.wait({link.closed}, timeout=pause_s)
            # A front end that starts has counted nothing, and answers late.
            if link in self._joined:
                started_s = time.monotonic()
                await link.count()
                counting_s = time.monotonic() - started_s
            # After the counts: after a pause of this process, their answer is the first sign of life.
            link.close_if_silent()

    async def _count_all(self) -> None:
        await asyncio.gather(*(link.count() for link in tuple(self._joined)))

    def _remove(self, link: FrontEndLink) -> None:
        self._joined.discard(link)
        self._ended.add(link.counts)
        # A version that is being unloaded may have gone from the metrics.
        self._ended.keep(self._announced_versions, self._announced)

    @property
    def _announced_versions(self) -> set[Version]:
        return {(facts.name, facts.version) for facts, _ in self._announced.values()}
