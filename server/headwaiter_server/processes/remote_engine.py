"""The engine as a front end's process sees it: behind a socket."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.inputs.tokenizer import BundleTokenizer, text_settings
from headwaiter_server.metrics.page import Page
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.sums import Counts, read_samples
from headwaiter_server.metrics.totals import Totals
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.model_version import VersionStatus
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.processes.link import Link, Methods, Refused
from headwaiter_server.processes.messages import Kind, write_request
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Interval, Job, Outcome
from headwaiter_server.settings.flags import Settings
from headwaiter_server.settings.tenants import Tenant


class RemoteEngine:
    """Asks the engine's process; see `Engine`.

    Args:
        settings: the settings of the server.
        recorder: counts and times the requests of this front end.
        link: the socket to the engine.

    Attributes:
        methods: what the engine may call.
    """

    def __init__(self, settings: Settings, recorder: Recorder, link: Link) -> None:
        self._settings, self._recorder, self._link = settings, recorder, link
        self._loop = asyncio.get_running_loop()
        self.directory = ModelDirectory(settings.default_model, single=settings.bundle is not None)
        # The models that the engine has announced, by number.
        self._models: dict[int, ServedModel] = {}
        self.methods: Methods = {
            "prepare": self._prepare,
            "publish": self._publish,
            "release": self._release,
            "counts": self._counts,
        }

    async def submit(self, served: ServedModel, job: Job, on_queued: Callable[[], None]) -> Outcome:
        """See `Engine`."""
        if job.failures is not None and len(job.failures) == len(job.values):
            return Outcome(None, [] if job.hidden else None, failures=dict(job.failures))
        asked = self._link.ask(Kind.REQUEST, write_request(served.facts.number, job))
        outcome: Outcome = await _queued(asked, on_queued)
        if job.failures:
            # The engine does not know the errors of the sequences that failed here.
            outcome.failures = {**outcome.failures, **job.failures}
        return outcome

    async def check_room(
        self, served: ServedModel, tokens: int, deadline_s: float, priority: Priority, tenant: Tenant
    ) -> None:
        """See `Engine`."""
        await self._link.call("check_room", served.facts.number, tokens, deadline_s, priority, tenant)

    async def check_attention_room(self, served: ServedModel) -> None:
        """See `Engine`."""
        await self._link.call("check_attention_room", served.facts.number)

    async def attend(
        self,
        served: ServedModel,
        sequence: NDArray[np.generic],
        selection: AttentionSelection,
        *,
        deadline_s: float,
        on_queued: Callable[[], None],
    ) -> tuple[AttentionWeights, Interval]:
        """See `Engine`."""
        asked = self._link.call("attend", served.facts.number, sequence, selection, deadline_s)
        result: tuple[AttentionWeights, Interval] = await _queued(asked, on_queued)
        return result

    async def describe(self, served: ServedModel) -> pb.GetModelResponse:
        """See `Engine`."""
        return pb.GetModelResponse.FromString(await self._link.call("describe", served.facts.number))

    async def batches(self, models: Sequence[ServedModel]) -> pb.ListBatchesResponse:
        """See `Engine`."""
        return pb.ListBatchesResponse.FromString(await self._link.call("batches", _numbers(models)))

    async def totals(self, models: Sequence[ServedModel]) -> list[Totals]:
        """See `Engine`."""
        totals: list[Totals] = await self._link.call("totals", _numbers(models))
        return totals

    async def load(self, name: str) -> None:
        """See `Engine`."""
        await self._link.call("load", name)

    async def load_on_demand(self, name: str) -> None:
        """See `Engine`."""
        await self._link.call("load_on_demand", name)

    async def unload(self, name: str) -> None:
        """See `Engine`."""
        await self._link.call("unload", name)

    async def metrics(self, accept: str) -> Page:
        """See `Engine`."""
        # HTTP asks in an event loop of its own.
        asked = asyncio.run_coroutine_threadsafe(self._link.call("metrics", accept), self._loop)
        page: Page = await asyncio.wrap_future(asked)
        # Another process has written the page, and paces the pages.
        return page._replace(writing_s=0.0)

    async def _prepare(self, facts: ModelFacts, tokenizer_file: bytes | None) -> None:
        """Open the tokenizer of a model that will answer requests."""
        tokenizer = None
        if tokenizer_file is not None:
            tokenizer = await asyncio.to_thread(BundleTokenizer, tokenizer_file, *text_settings(facts.manifest))
        recorder = self._recorder.model(facts.name, facts.version)
        self._models.setdefault(facts.number, ServedModel(facts, tokenizer, recorder))

    async def _publish(self, versions: list[VersionStatus], current: list[int], started: bool, leaving: bool) -> None:
        """Answer new requests with these models from now on."""
        before = {each.labels: each for each in self.directory.current}
        models = {self._models[number].name: self._models[number] for number in current}
        for each in models.values():
            if before.get(each.labels, each) is not each:
                # The same version was loaded again, from other files: its metrics start again from zero.
                self._recorder.remove_model(*each.labels)
        self.directory.started, self.directory.leaving = started, leaving
        self.directory.update(versions, models)

    async def _release(self, number: int) -> None:
        """Forget a model that answers no new requests, once the requests that use it are answered."""
        served = self._models.pop(number, None)
        if served is None:
            return
        await served.wait_until_unused(self._settings.drain_s)
        if all(each.labels != served.labels for each in self._models.values()):
            self._recorder.remove_model(*served.labels)

    async def _counts(self) -> bytes:
        """Return what this front end has counted so far, pickled."""
        models = tuple(self._models.values())

        def read() -> bytes:
            totals = {each.facts.number: each.recorder.statistics.totals() for each in models}
            samples, exemplars = read_samples(self._recorder.registry)
            return pickle.dumps(Counts(samples, totals, exemplars))

        # Reading thousands of series takes long; a thread keeps the event loop free.
        return await asyncio.to_thread(read)


async def _queued(asked: Awaitable[Any], on_queued: Callable[[], None]) -> Any:
    """Return the answer to what the engine queues; call `on_queued` before, unless the engine has refused it."""
    try:
        answer = await asked
    except Refused as refused:
        raise refused.error from refused.error.__cause__
    except HeadwaiterError:
        on_queued()
        raise
    on_queued()
    return answer


def _numbers(models: Sequence[ServedModel]) -> list[int]:
    return [each.facts.number for each in models]
