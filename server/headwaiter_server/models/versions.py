"""The versions of all models: load a version, let it take over, and free the memory of the version before.

A new version is loaded beside the old one, in a thread. Once the new version is checked, measured and warm, and all
front ends have its tokenizer, it takes over. Requests that have begun with the old version end with the old version;
then its memory is freed. A version that cannot be loaded is reported, and changes nothing else.
`models/model_version.py` has the states of a version.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.calibration import KnownCost
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.folders import FoundVersion
from headwaiter_server.models.loading import LoadedModel, load_model
from headwaiter_server.models.model_settings import read_model_settings
from headwaiter_server.models.model_version import Event, History, ModelState, VersionStatus
from headwaiter_server.models.on_disk import OnDisk, describe
from headwaiter_server.models.room import Resident, make_room
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.runtime.attention_weights import AttentionWeightsGraph
from headwaiter_server.runtime.errors import BundleChanged, ModelRefused, NoRoom, NotEnoughMemory, one_line
from headwaiter_server.runtime.memory import give_back_free_memory
from headwaiter_server.scheduling.attention_queue import AttentionWeightsQueue
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.settings.flags import Settings, SettingsError

log = logging.getLogger(__name__)

# Seconds until a request may load a version again that could not be loaded on demand. The alert of failed versions
# needs a minute.
_RETRY_S = 90.0


@dataclass(eq=False, kw_only=True)
class ModelVersion(VersionStatus):
    """A version of a model in the process of the models.

    Attributes:
        retried: whether a failed version is loaded again although its files are unchanged.
        disk: what the manifest and the settings say; None if they cannot be read, and for a single bundle.
        loaded_s: when the load ended, on `time.monotonic`.
        load_s: seconds that the load took.
        running: the loaded model; None before the version is ready and after its memory is freed.
    """

    bundle: FoundVersion
    retried: bool = False
    disk: OnDisk | None = None
    loaded_s: float = 0.0
    load_s: float = 0.0
    running: RunningModel | None = None


class Followers(Protocol):
    """Other processes that answer requests with the models of this process."""

    async def prepare(self, facts: ModelFacts, tokenizer: BundleTokenizer | None) -> None:
        """Return when all of them have opened the tokenizer of a model."""
        ...

    async def release(self, number: int) -> None:
        """Return when none of them uses a model any more, which answers no new requests."""
        ...


# Returns whether a version that is loaded should still take over, given the version that answers now.
IsWanted = Callable[[ModelVersion, ModelVersion | None], Awaitable[bool]]


class ModelVersions:
    """The versions of all models, from the load to the end.

    Args:
        settings: the settings of the server.
        scheduler: runs the batches of all models.
        recorder: records the metrics of all models.
        directory: learns what each version is doing.

    Attributes:
        current: the version of each model that answers requests.
        followers: other processes that answer requests with the models.
    """

    def __init__(self, settings: Settings, scheduler: Scheduler, recorder: Recorder, directory: ModelDirectory) -> None:
        self._settings, self._scheduler, self._recorder = settings, scheduler, recorder
        self._directory = directory
        self.current: dict[str, ModelVersion] = {}
        self.followers: list[Followers] = []
        self._versions: list[ModelVersion] = []
        # The loaded versions, those that are draining too, by the number of the load.
        self._running: dict[int, RunningModel] = {}
        self._load_numbers = count()
        # Loads follow each other in the order in which callers asked, so that each decision about memory holds.
        self._one_load = asyncio.Lock()
        self._freed = asyncio.Event()
        # For each model, what its batches have taught, and how often it was loaded.
        self._learnt: dict[str, KnownCost] = {}
        self._histories: defaultdict[str, History] = defaultdict(History)
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._retiring = BackgroundTasks(on_error=lambda: log.error("a version cannot be unloaded", exc_info=True))

    def running_model(self, number: int) -> RunningModel:
        """Return a loaded version by the number of its load.

        Raises:
            Unavailable: the memory of the version is freed.
        """
        if (running := self._running.get(number)) is None:
            raise Unavailable("the model is being unloaded: send the request to another replica")
        return running

    @property
    def failed(self) -> list[ModelVersion]:
        """The versions that cannot be served."""
        return [each for each in self._versions if each.state is ModelState.FAILED]

    def forget(self, failed: ModelVersion) -> None:
        """Forget a version that could not be served."""
        self._note_end(failed, Event.FORGOTTEN)

    def drain(self) -> None:
        """Free no more memory, and refuse requests for attention weights; the scheduler refuses all others."""
        self._retiring.cancel()
        for version in self.current.values():
            if version.running is not None:
                version.running.attention_queue.drain()

    async def serve_bundle(self, bundle: FoundVersion) -> None:
        """Load the only version of the only model.

        Raises:
            ModelRefused: the version must not be served.
        """
        loaded = await self._load_in_thread(bundle.folder, self._settings)
        name = self._settings.model_name or loaded.model.bundle.manifest.name
        version = self._add(replace(bundle, name=name))
        self._take_over(version, loaded, await self._announce(version, loaded))

    async def load(self, bundle: FoundVersion, is_wanted: IsWanted) -> ModelVersion:
        """Load a version, and let it take over if it is still wanted then; return the version.

        A version that cannot be loaded has failed, with the reason that callers see.
        """
        try:
            disk = await asyncio.to_thread(describe, bundle, self._settings)
        except Exception as error:  # noqa: BLE001 - any error is the reason of the failure
            version = self._add(bundle)
            self._fail(version, error)
            self._publish()
            return version
        version = self._offered(bundle) or self._add(bundle, disk)
        if version.state is ModelState.ON_DISK:
            version.note(Event.WANTED)
            version.reason, version.sizes = "", None
        self._publish()
        try:
            async with self._one_load:
                await self._load_next(version, is_wanted)
        except BaseException:
            if version.state is ModelState.LOADING:
                self._versions.remove(version)
                self._publish()
            raise
        self._publish()
        return version

    async def _load_next(self, version: ModelVersion, is_wanted: IsWanted) -> None:
        """Load a version while no other version is loaded; see `load`."""
        try:
            await self._make_room(version)
            before, started_s = self.current.get(version.name), time.monotonic()
            loaded = await self._load(version, None if before is None else before.running)
        except Exception as error:  # noqa: BLE001 - any error is the reason of the failure
            self._fail(version, error)
            return
        facts = await self._announce(version, loaded)
        if await is_wanted(version, before):
            self._take_over(version, loaded, facts)
        else:
            version.note(Event.UNWANTED)
            await self._release(facts.number)
            self._note_end(version, Event.FREED)
        version.loaded_s, history = time.monotonic(), self._histories[version.name]
        version.load_s = version.loaded_s - started_s
        self._histories[version.name] = history._replace(
            loads=history.loads + 1, loading_s=history.loading_s + version.load_s
        )

    def offer(self, bundles: Collection[FoundVersion]) -> None:
        """Let requests load these bundles, and no others."""
        self._forget_offers(each for each in self._versions if each.bundle not in bundles)
        for bundle in bundles:
            if self._offered(bundle) is None:
                self._add(bundle, describe(bundle, self._settings)).state = ModelState.ON_DISK
        self._publish()

    def _forget_offers(self, versions: Iterable[ModelVersion]) -> None:
        for each in [each for each in versions if each.state is ModelState.ON_DISK]:
            self._note_end(each, Event.FORGOTTEN)

    def _offered(self, bundle: FoundVersion) -> ModelVersion | None:
        offered = (each for each in self._versions if each.state is ModelState.ON_DISK)
        return next((each for each in offered if each.bundle == bundle), None)

    def retire(self, name: str) -> None:
        """Let no version of a model answer new requests, and free the memory of the version that did."""
        self._forget_offers(each for each in self._versions if each.name == name)
        version = self.current.pop(name, None)
        if version is not None:
            self._retire(version)
            self._publish()

    async def _make_room(self, version: ModelVersion) -> None:
        """Return once a version fits in memory; unload models for it.

        Raises:
            NoRoom: the version cannot fit.
        """
        limit_bytes = self._settings.max_model_bytes
        while limit_bytes and version.disk is not None:
            residents = [resident for each in self._versions if (resident := _resident(each)) is not None]
            room = make_room(version.disk.size_bytes, limit_bytes, residents, time.monotonic())
            if not room.wait_s:
                return
            self._freed.clear()
            for name in room.evict:
                self._evict(self.current[name])
            with suppress(TimeoutError):
                async with asyncio.timeout(room.wait_s if room.wait_s < float("inf") else None):
                    await self._freed.wait()

    def _evict(self, version: ModelVersion) -> None:
        """Unload a model to make room, and let the next request load the model again, unless a new version answers."""
        history = self._histories[version.name]
        self._histories[version.name] = history._replace(evictions=history.evictions + 1)
        self.retire(version.name)
        self._add(version.bundle, version.disk).state = ModelState.ON_DISK
        self._publish()

    def _add(self, bundle: FoundVersion, disk: OnDisk | None = None) -> ModelVersion:
        facts = None if disk is None or disk.pinned else disk.facts
        version = ModelVersion(name=bundle.name, number=bundle.version, bundle=bundle, disk=disk, facts=facts)
        self._versions.append(version)
        return version

    async def _load(self, version: ModelVersion, before: RunningModel | None) -> LoadedModel:
        """Load a version in a thread.

        Raises:
            Exception: the version cannot be loaded.
        """
        settings = await asyncio.to_thread(read_model_settings, self._settings, version.bundle.settings)
        if before is None:
            return await self._load_in_thread(version.bundle.folder, settings, self._learnt.get(version.name))
        if settings.provider == "auto" and before.facts.provider == "cuda":
            # A version that does not fit on the GPU beside its predecessor must not move the model to the CPU.
            settings = replace(settings, provider="cuda")
        # The cost is read here, because batches change what is learnt in this event loop.
        return await self._load_in_thread(version.bundle.folder, settings, before.known_cost)

    async def _load_in_thread(self, folder: Path, settings: Settings, before: KnownCost | None = None) -> LoadedModel:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._loader, _load_without_panic, folder, settings, self._scheduler.workers, loop, before
        )

    def _fail(self, version: ModelVersion, error: Exception) -> None:
        """Record why a version cannot be served."""
        if isinstance(error, ModelRefused | SettingsError):
            log.error("version %s of %s cannot be served: %s", version.version, version.name, one_line(error))
        else:
            log.error("version %s of %s cannot be loaded", version.version, version.name, exc_info=error)
        # Callers see the reason, but must not see the path of the folder of models.
        version.reason = one_line(error).replace(f"{self._settings.models}/", "")
        version.retried = isinstance(error, NotEnoughMemory | BundleChanged)
        version.sizes = (error.limit_bytes, error.needed_bytes) if isinstance(error, NoRoom) else None
        version.note(Event.REFUSED)
        if version.facts is not None:
            asyncio.get_running_loop().call_later(_RETRY_S, self._let_retry, version)

    def _let_retry(self, failed: ModelVersion) -> None:
        """Let the next request load a version again, unless another version of the model answers or may answer."""
        others = (each for each in self._versions if each.name == failed.name and each is not failed)
        if failed in self._versions and all(each.state is ModelState.FAILED for each in others):
            failed.note(Event.DUE)
            self._publish()

    async def _announce(self, version: ModelVersion, loaded: LoadedModel) -> ModelFacts:
        """Return the facts of a loaded version once the followers are ready for its requests."""
        devices = tuple(worker.device for worker in loaded.sessions)
        facts = ModelFacts.of(loaded.model, version.name, version.version, devices, next(self._load_numbers))
        for followers in self.followers:
            await followers.prepare(facts, loaded.tokenizer)
        return facts

    async def _release(self, number: int) -> None:
        for followers in self.followers:
            await followers.release(number)

    def _take_over(self, version: ModelVersion, loaded: LoadedModel, facts: ModelFacts) -> None:
        """Answer all later requests with a loaded version, and retire the previous version."""
        before = self.current.get(version.name)
        if before is not None and before.version == version.version:
            # The same version was loaded again, from other files: its metrics start again from zero.
            self._recorder.remove_model(version.name, version.version)
        recorder = self._recorder.model(version.name, version.version)
        calibration = loaded.calibration
        queue = self._scheduler.add_model(
            loaded.sessions,
            calibration.cost,
            calibration.limits,
            recorder,
            calibration.largest_budget_tokens,
            f"{version.name} version {version.version}",
        )
        if (tracing := self._recorder.tracing) is not None:
            queue.trace_batch = partial(tracing.record_batch, version.name, version.version)
        recorder.serving(loaded.model, calibration, queue, partial(self._scheduler.estimated_wait_s, queue))
        # The first Attend loads the graph. The service refuses Attend if the bundle has no graph of attention weights.
        bundle = loaded.model.bundle
        attention_queue = AttentionWeightsQueue(lambda: AttentionWeightsGraph.open_in(bundle).run, recorder.expired)
        version.running = self._running[facts.number] = RunningModel(
            facts, loaded.tokenizer, recorder, loaded.model, queue, attention_queue, calibration
        )
        version.note(Event.LOADED)
        self.current[version.name] = version
        self._forget_offers(each for each in self._versions if each.name == version.name)
        log.info("serving %s, version %s: %s", version.name, version.version, loaded.describe())
        if before is not None:
            self._retire(before)
        self._publish()

    def _retire(self, version: ModelVersion) -> None:
        """Free the memory of a version once the requests that use it are answered, or after `--drain-s`."""
        version.note(Event.RETIRED)
        self._retiring.start(self._free(version))

    async def _free(self, version: ModelVersion) -> None:
        assert version.running is not None
        self._learnt[version.name] = version.running.known_cost
        await version.running.wait_until_unused(self._settings.drain_s)
        number = version.running.facts.number
        await self._release(number)
        await self._scheduler.remove_model(version.running.queue)
        version.running = None
        del self._running[number]
        await asyncio.to_thread(give_back_free_memory)
        self._note_end(version, Event.FREED)
        current = self.current.get(version.name)
        if current is None or current.version != version.version:
            self._recorder.remove_model(version.name, version.version)
        log.info("unloaded %s, version %s", version.name, version.version)

    def _note_end(self, version: ModelVersion, event: Event) -> None:
        """Forget a version of which an event leaves nothing."""
        if not version.note(event):
            self._versions.remove(version)
        self._freed.set()
        self._publish()

    def _publish(self) -> None:
        """Tell the directory what each version is doing."""
        for each in self._versions:
            each.history = self._histories[each.name]
        current = {name: each.running for name, each in self.current.items() if each.running is not None}
        self._directory.update(self._versions, current)


def _resident(version: ModelVersion) -> Resident | None:
    """Return a version as what holds memory; None if it holds none."""
    running, disk = version.running, version.disk
    if running is None or disk is None:
        return None
    used_s = float("inf") if running.in_use or running.queue.requests else running.used_s
    leaving = version.state is ModelState.DRAINING
    times = used_s, version.loaded_s, version.load_s
    return Resident(version.name, disk.size_bytes, *times, pinned=disk.pinned, leaving=leaving)


def _load_without_panic(*arguments: Any) -> LoadedModel:
    """Call `load_model`; a panic of a library in Rust becomes an ordinary error."""
    try:
        return load_model(*arguments)
    except Exception:
        raise
    except BaseException as panic:
        raise RuntimeError(f"{type(panic).__name__}: {panic}") from panic
