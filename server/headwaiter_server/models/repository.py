"""The repository of models: which versions are loaded, and how a new version takes over from an old one.

A new version is loaded beside the old one, in a thread. Once the new version is checked, measured and warm, and all
front ends have its tokenizer, it takes over. Requests that have begun with the old version end with the old version;
then its memory is freed. A version that cannot be loaded is reported, and changes nothing else.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from headwaiter_proto.rules.errors import InvalidInput, Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.calibration import KnownCost
from headwaiter_server.models.changes import changes
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.folders import BundleFolder, ModelFolder, scan
from headwaiter_server.models.loading import LoadedModel, load_model
from headwaiter_server.models.model_settings import read_model_settings
from headwaiter_server.models.model_version import ModelState, VersionStatus, raise_failure
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.models.tokenizer import BundleTokenizer
from headwaiter_server.runtime.attention_weights import AttentionWeightsGraph
from headwaiter_server.runtime.errors import BundleChanged, ModelRefused, NotEnoughMemory, one_line
from headwaiter_server.runtime.memory import give_back_free_memory
from headwaiter_server.scheduling.attention_weights import AttentionWeightsQueue
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.settings.flags import Settings, SettingsError

log = logging.getLogger(__name__)

# A version counts as removed if two scans at least this far apart lack it.
_SECOND_LOOK_S = 0.2


@dataclass(eq=False, kw_only=True)
class ModelVersion(VersionStatus):
    """A version of a model in the repository.

    Attributes:
        retried: whether a failed version is loaded again although its files are unchanged.
        running: the loaded model; None before the version is ready and after the model is unloaded.
    """

    bundle: BundleFolder
    retried: bool = False
    running: RunningModel | None = None

    @classmethod
    def of(cls, bundle: BundleFolder) -> "ModelVersion":
        """Return the version of a bundle, about to be loaded."""
        return cls(name=bundle.name, number=bundle.version, bundle=bundle)


class Followers(Protocol):
    """Other processes that answer requests with the models of the repository."""

    async def prepare(self, facts: ModelFacts, tokenizer: BundleTokenizer | None) -> None:
        """Return when all of them have opened the tokenizer of a model."""
        ...

    async def release(self, number: int) -> None:
        """Return when none of them uses a model any more, which answers no new requests."""
        ...


# The highest version of each model that failed to load.
Failures = Mapping[str, ModelVersion]


class ModelRepository:
    """The models of a server.

    Args:
        settings: the settings of the server.
        scheduler: runs the batches of all models.
        recorder: records the metrics of all models.
        directory: learns what each version is doing.
        followers: other processes that answer requests with the models.
        on_change: called when the directory has changed.
    """

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        recorder: Recorder,
        directory: ModelDirectory,
        followers: Followers,
        on_change: Callable[[], None],
    ) -> None:
        self._settings, self._scheduler, self._recorder = settings, scheduler, recorder
        self._directory, self._followers, self._on_change = directory, followers, on_change
        # The loaded versions, those that are being unloaded too, by the number of the load.
        self._running: dict[int, RunningModel] = {}
        self._load_numbers = count()
        self._versions: list[ModelVersion] = []
        # The version of each model that answers requests.
        self._current: dict[str, ModelVersion] = {}
        self._unloaded: set[str] = set()
        # What is wrong with folders, as the log has said, and since when scans have lacked served versions.
        self._reported: set[tuple[str, str]] = set()
        self._missing_since: dict[tuple[str, int], float] = {}
        self._scanning = asyncio.Lock()
        # For each model, or "" for all, the update that has not scanned the folder yet.
        self._waiting: dict[str, asyncio.Task[Failures]] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        # For each model, the task that loads a version.
        self._loading: dict[str, asyncio.Task[ModelVersion | None]] = {}
        self._tasks = BackgroundTasks(on_error=_log_error)
        self._started = self._draining = False

    @property
    def running(self) -> list[RunningModel]:
        """The models that answer requests."""
        return [version.running for version in self._current.values() if version.running is not None]

    def running_model(self, number: int) -> RunningModel:
        """Return a loaded version by the number of its load.

        Raises:
            Unavailable: the version is unloaded.
        """
        if (running := self._running.get(number)) is None:
            raise Unavailable("the model is being unloaded: send the request to another replica")
        return running

    async def start(self) -> None:
        """Load the models of the settings; raise `ModelRefused` if no model can be served."""
        settings = self._settings
        if settings.models is not None:
            await self._run(self._request_update())
            if not self._current and (self._versions or not (settings.watch_s or settings.model_control == "on")):
                reasons = "; ".join(f"{each.name}: {each.reason}" for each in self._directory.known_versions)
                raise ModelRefused(reasons or f"{settings.models} has no bundle: make the bundle NAME/1 in this folder")
        else:
            assert settings.bundle is not None
            loaded = await self._load_in_thread(settings.bundle, settings)
            name = settings.model_name or loaded.model.bundle.manifest.name
            version = ModelVersion.of(BundleFolder(name, 1, settings.bundle))
            self._versions.append(version)
            self._take_over(version, loaded, await self._announce(version, loaded))
        if settings.default_model not in ("", *self._current):
            log.warning("--default-model %s is not among the models that are served", settings.default_model)
        self._started = True
        self._publish()
        if settings.watch_s:
            self._tasks.start(self._watch(settings.watch_s))

    def drain(self) -> None:
        """Load no more versions, and refuse requests for attention weights; the scheduler refuses all others."""
        self._draining = True
        self._tasks.cancel()
        for running in self.running:
            running.attention_queue.drain()

    async def load(self, name: str) -> None:
        """Load the highest version of a model, even if it failed before.

        Raises:
            InvalidInput: the name is empty.
            ModelNotFound: the folder of models has no such model, or its highest version cannot be served.
            Unavailable: the server is draining.
        """
        _require_name(name)
        self._unloaded.discard(name)
        failures = await self._run(self._request_update(name))
        # Not the failures among `versions`: another caller may have asked for another attempt meanwhile.
        raise_failure(failures.values())
        self._directory.find(name)

    async def unload(self, name: str) -> None:
        """Stop giving requests to a model until `load` is called for it, and free its memory once its requests end.

        Raises:
            InvalidInput: the name is empty.
            ModelNotFound: the model is not loaded.
        """
        _require_name(name)
        if name not in self._loading:
            self._directory.find(name)
        self._unloaded.add(name)
        self._retire_current(name)

    async def _run(self, update: "asyncio.Task[Failures]") -> Failures:
        """Wait for an update, which goes on if the caller does not wait for its end.

        Raises:
            Unavailable: the server is draining.
        """
        await asyncio.wait({update})
        if update.cancelled():
            raise _draining()
        return update.result()

    def _request_update(self, only: str = "") -> "asyncio.Task[Failures]":
        """Start an update; all callers that ask before it scans the folder share one update.

        Raises:
            Unavailable: the server is draining.
        """
        if self._draining:
            raise _draining()
        if only not in self._waiting:
            self._waiting[only] = self._tasks.start(self._update(only))
        return self._waiting[only]

    async def _watch(self, interval_s: float) -> None:
        """Look for changes of the folder of models at this interval, forever."""
        problem = ""
        while True:
            await asyncio.sleep(interval_s)
            before, problem = problem, ""
            try:
                # A load in progress does not delay the next look.
                await self._update(waits=False)
            except Unavailable as error:
                problem = str(error)
                if problem != before:
                    log.warning("%s", problem)
            except Exception:
                log.exception("the folder of models cannot be compared with what is loaded")

    async def _update(self, only: str = "", *, waits: bool = True) -> Failures:
        """Compare the folder, or one model in it, with what is served, and change what is served.

        Args:
            only: name of the model; empty for all models.
            waits: whether to return only when the loads that this update needs have ended.

        Returns:
            The versions that failed to load, if the update waits.
        """
        async with self._scanning:
            self._waiting.pop(only, None)
            load = await self._scan(only)
            if only and any(name == only for name, _ in self._missing_since):
                # A caller asked for this change: look a second time soon, instead of at the next interval.
                await asyncio.sleep(_SECOND_LOOK_S)
                load = await self._scan(only)
        if only and only in self._loading:
            # The load in progress may be of a version that is no longer the highest one.
            await asyncio.wait({self._loading[only]})
            return await self._update(only, waits=waits)
        for name, bundles in load.items():
            if name not in self._loading:
                self._loading[name] = self._tasks.start(self._load_first(name, bundles))
        if not waits:
            return {}
        loads = {name: self._loading[name] for name in load}
        ended = await asyncio.gather(*map(asyncio.shield, loads.values()))
        return {name: failure for name, failure in zip(loads, ended, strict=True) if failure is not None}

    async def _scan(self, only: str) -> dict[str, tuple[BundleFolder, ...]]:
        """Scan the folder, unload what has to be unloaded, and return which bundles of each model to try to load.

        Bundles of the model `only` that failed before, even beside this scan, are tried again.
        """
        assert self._settings.models is not None
        now_s = time.monotonic()
        try:
            found = await asyncio.to_thread(scan, self._settings.models)
        except OSError as error:
            raise Unavailable(f"the folder of models cannot be read ({error.strerror}): mount it") from None
        self._report(found)
        bundles = {bundle for folder in found.values() for bundle in folder.bundles.values()}
        self._versions = [
            each
            for each in self._versions
            if each.state is not ModelState.FAILED
            or (each.bundle in bundles and not each.retried and each.name != only)
        ]
        self._publish()
        change = changes(
            found,
            {name: version.bundle for name, version in self._current.items()},
            failed={each.bundle for each in self._versions if each.state is ModelState.FAILED},
            unwanted=self._unloaded,
            missing_before={key for key, since_s in self._missing_since.items() if now_s - since_s >= _SECOND_LOOK_S},
        )
        self._missing_since = {key: self._missing_since.get(key, now_s) for key in change.missing}
        for name in change.unload:
            if only in ("", name):
                self._retire_current(name)
        return {name: bundles for name, bundles in change.load.items() if only in ("", name)}

    def _report(self, found: Mapping[str, ModelFolder]) -> None:
        """Log each folder that cannot be read or is no version, once."""
        problems = set()
        for name, folder in found.items():
            for version, reason in folder.unreadable.items():
                path = name if version is None else f"{name}/{version}"
                problems.add((path, f"cannot be read ({reason}): what is served of this model stays"))
            problems |= {(f"{name}/{inside}", f"is ignored: {reason}") for inside, reason in folder.ignored.items()}
        for path, problem in sorted(problems - self._reported):
            log.warning("%s %s", path, problem)
        self._reported = problems

    async def _load_first(self, name: str, bundles: tuple[BundleFolder, ...]) -> ModelVersion | None:
        """Load the first of these bundles that can be served; return the first one that failed, if any did."""
        failure: ModelVersion | None = None
        try:
            for bundle in bundles:
                version = ModelVersion.of(bundle)
                self._versions.append(version)
                self._publish()
                try:
                    await self._load(version)
                except BaseException:
                    self._versions.remove(version)
                    raise
                finally:
                    self._publish()
                if version.state is ModelState.FAILED:
                    failure = failure or version
                if version.state is not ModelState.FAILED or name in self._unloaded:
                    break
        finally:
            del self._loading[name]
        return failure

    async def _load(self, version: ModelVersion) -> None:
        """Load a version; if it cannot be loaded, log and record why."""
        before = self._current.get(version.name)
        fallback_reason = ""
        try:
            settings = await asyncio.to_thread(read_model_settings, self._settings, version.bundle.settings)
            if before is not None and before.running is not None and settings.provider == "auto":
                # A version that does not fit on the GPU beside its predecessor must not move the model to the CPU.
                settings = replace(settings, provider=before.running.facts.provider)
                # The predecessor's reason for the CPU is the reason for this version too.
                fallback_reason = before.running.model.fallback_reason
            # Read here, because batches change what is learnt in this event loop.
            known = before.running.known_cost if before is not None and before.running is not None else None
            loaded = await self._load_in_thread(version.bundle.folder, settings, known)
            if fallback_reason:
                loaded = replace(loaded, model=replace(loaded.model, fallback_reason=fallback_reason))
        except Exception as error:
            if isinstance(error, ModelRefused | SettingsError):
                log.error("version %s of %s cannot be served: %s", version.version, version.name, one_line(error))
            else:
                log.exception("version %s of %s cannot be loaded", version.version, version.name)
            # Callers see the reason, but must not see the path of the folder of models.
            reason = one_line(error).replace(f"{self._settings.models}/", "")
            version.state, version.reason = ModelState.FAILED, reason
            version.retried = isinstance(error, NotEnoughMemory | BundleChanged)
            return
        facts = await self._announce(version, loaded)
        if version.name in self._unloaded or await self._is_back(before, version):
            # The model was unloaded meanwhile, or the higher version was missing only for a while.
            self._versions.remove(version)
            version.state = ModelState.DRAINING
            await self._followers.release(facts.number)
            return
        self._take_over(version, loaded, facts)

    async def _is_back(self, before: ModelVersion | None, lower: ModelVersion) -> bool:
        """Return whether the folder has the version that answers now, before a lower version takes over."""
        if before is None or before.number <= lower.number or self._settings.models is None:
            return False
        try:
            found = await asyncio.to_thread(scan, self._settings.models)
        except OSError:
            return True
        return before.name in found and found[before.name].may_hold(before.number)

    async def _load_in_thread(self, folder: Path, settings: Settings, before: KnownCost | None = None) -> LoadedModel:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._loader, _load_without_panic, folder, settings, self._scheduler.workers, loop, before
        )

    async def _announce(self, version: ModelVersion, loaded: LoadedModel) -> ModelFacts:
        """Return the facts of a loaded version once the followers are ready for its requests."""
        devices = tuple(worker.device for worker in loaded.sessions)
        facts = ModelFacts.of(loaded.model, version.name, version.version, devices, next(self._load_numbers))
        await self._followers.prepare(facts, loaded.tokenizer)
        return facts

    def _take_over(self, version: ModelVersion, loaded: LoadedModel, facts: ModelFacts) -> None:
        """Answer all later requests with a loaded version, and retire the previous version."""
        before = self._current.get(version.name)
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
        version.state = ModelState.READY
        self._current[version.name] = version
        log.info("serving %s, version %s: %s", version.name, version.version, loaded.describe())
        if before is not None:
            self._retire(before)
        self._publish()

    def _retire_current(self, name: str) -> None:
        """Unload the version of a model that answers requests, if there is one."""
        version = self._current.pop(name, None)
        if version is not None:
            self._retire(version)
            self._publish()

    def _retire(self, version: ModelVersion) -> None:
        """Unload a version once the requests that use it are answered, or after `--drain-s`."""
        version.state = ModelState.DRAINING
        self._tasks.start(self._unload(version))

    async def _unload(self, version: ModelVersion) -> None:
        assert version.running is not None
        await version.running.wait_until_unused(self._settings.drain_s)
        number = version.running.facts.number
        await self._followers.release(number)
        await self._scheduler.remove_model(version.running.queue)
        version.running = None
        del self._running[number]
        await asyncio.to_thread(give_back_free_memory)
        self._versions.remove(version)
        self._publish()
        current = self._current.get(version.name)
        if current is None or current.version != version.version:
            self._recorder.remove_model(version.name, version.version)
        log.info("unloaded %s, version %s", version.name, version.version)

    def _publish(self) -> None:
        """Tell the directory what each version is doing."""
        current = {name: each.running for name, each in self._current.items() if each.running is not None}
        self._directory.update(self._versions, current, started=self._started)
        self._on_change()


def _load_without_panic(*arguments: Any) -> LoadedModel:
    """Call `load_model`; a panic of a library in Rust becomes an ordinary error."""
    try:
        return load_model(*arguments)
    except Exception:
        raise
    except BaseException as panic:
        raise RuntimeError(f"{type(panic).__name__}: {panic}") from panic


def _log_error() -> None:
    """Log the error of a task, except what its caller is told."""
    if not isinstance(sys.exception(), Unavailable):
        log.error("the repository of models failed", exc_info=True)


def _require_name(name: str) -> None:
    if not name:
        raise InvalidInput("the request names no model: send the name of the model to load or unload", field="name")


def _draining() -> Unavailable:
    return Unavailable("the server is shutting down: send the request to another replica")
