"""The repository of models: compare the folder of models with what is served, and change what is served.

`models/folders.py` looks, `models/changes.py` decides, and `models/versions.py` loads and unloads.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from headwaiter_proto.rules.errors import InvalidInput, Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks, Result
from headwaiter_server.models.changes import changes
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.folders import FoundModel, FoundVersion, scan
from headwaiter_server.models.model_version import ModelState, raise_failure
from headwaiter_server.models.on_disk import describe
from headwaiter_server.models.versions import ModelVersion, ModelVersions
from headwaiter_server.runtime.errors import ModelRefused
from headwaiter_server.scheduling.request_errors import shutting_down
from headwaiter_server.settings.flags import Settings, SettingsError

log = logging.getLogger(__name__)

# A version counts as removed if two scans at least this far apart lack it.
_SECOND_LOOK_S = 0.2

# The highest version of each model that failed to load.
Failures = Mapping[str, ModelVersion]


class ModelRepository:
    """The models of a server: what is on disk, what callers asked for, and what is served.

    Args:
        settings: the settings of the server.
        versions: loads and unloads versions.
        directory: what each version is doing.
    """

    def __init__(self, settings: Settings, versions: ModelVersions, directory: ModelDirectory) -> None:
        self._settings, self._versions, self._directory = settings, versions, directory
        # The models that callers have unloaded.
        self._unloaded: set[str] = set()
        # What is wrong with folders, as the log has said, and since when scans have lacked served versions.
        self._reported: set[tuple[str, str]] = set()
        self._missing_since: dict[tuple[str, int], float] = {}
        self._scanning = asyncio.Lock()
        # For each model, or "" for all, and with or without retries, the update that has not scanned the folder yet.
        self._waiting: dict[tuple[str, bool], asyncio.Task[Failures]] = {}
        # For each model, the task that loads a version.
        self._loading: dict[str, asyncio.Task[ModelVersion | None]] = {}
        self._tasks = BackgroundTasks(on_error=_log_error)
        self._draining = False

    async def start(self) -> None:
        """Load the models of the settings; raise `ModelRefused` if no model can be served."""
        settings = self._settings
        if settings.models is not None:
            await self._run(self._request_update())
            if not self._directory.served_names and (
                self._directory.known_versions or not (settings.watch_s or settings.model_control == "on")
            ):
                reasons = "; ".join(f"{each.name}: {each.reason}" for each in self._directory.known_versions)
                raise ModelRefused(reasons or f"{settings.models} has no bundle: make the bundle NAME/1 in this folder")
        else:
            assert settings.bundle is not None
            await self._versions.serve_bundle(FoundVersion("", 1, settings.bundle))
        if settings.default_model not in ("", *self._directory.served_names):
            log.warning("--default-model %s is not among the models that are served", settings.default_model)
        self._directory.started = True
        self._directory.notify()
        if settings.watch_s:
            self._tasks.start(self._watch(settings.watch_s))

    def drain(self) -> None:
        """Load no more versions; see `ModelVersions.drain`."""
        self._draining = True
        self._tasks.cancel()
        self._versions.drain()

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
        # Not the failures among all versions: another caller may have asked for another attempt meanwhile.
        raise_failure(failures.values())
        self._directory.facts(name)

    async def load_on_demand(self, name: str) -> None:
        """Load a model that a request needs, or wait for the load in progress; the directory says how the load ended.

        Raises:
            Unavailable: the server is draining, or the folder of models cannot be read.
        """
        await self._run(self._loading.get(name) or self._request_update(name, retries=False))

    async def unload(self, name: str) -> None:
        """Stop giving requests to a model until `load` is called for it, and free its memory once its requests end.

        Raises:
            InvalidInput: the name is empty.
            ModelNotFound: the model is not loaded.
        """
        _require_name(name)
        if name not in self._loading:
            self._directory.facts(name)
        self._unloaded.add(name)
        self._versions.retire(name)

    async def _run(self, update: "asyncio.Task[Result]") -> Result:
        """Wait for an update or a load, which goes on if the caller does not wait for its end.

        Raises:
            Unavailable: the server is draining.
        """
        await asyncio.wait({update})
        if update.cancelled():
            raise shutting_down()
        return update.result()

    def _request_update(self, only: str = "", *, retries: bool = True) -> "asyncio.Task[Failures]":
        """Start an update, see `_update`; all callers that ask before it scans the folder share one update.

        Raises:
            Unavailable: the server is draining.
        """
        if self._draining:
            raise shutting_down()
        if (only, retries) not in self._waiting:
            self._waiting[only, retries] = self._tasks.start(self._update(only, retries=retries))
        return self._waiting[only, retries]

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

    async def _update(self, only: str = "", *, waits: bool = True, retries: bool = True) -> Failures:
        """Compare the folder, or one model in it, with what is served, and change what is served.

        Args:
            only: name of the model; empty for all models.
            waits: whether to return only when the loads that this update needs have ended.
            retries: whether to load versions of the model `only` that failed before again.

        Returns:
            The versions that failed to load, if the update waits.
        """
        async with self._scanning:
            self._waiting.pop((only, retries), None)
            load = await self._scan(only, retries=retries)
            is_missing = any(name == only for name, _ in self._missing_since)
            if only and (is_missing or not (load or only in self._versions.current)):
                # A caller asked for this change: look a second time soon, instead of at the next interval.
                await asyncio.sleep(_SECOND_LOOK_S)
                load = await self._scan(only, retries=retries)
        if only and only in self._loading:
            # The load in progress may be of a version that is no longer the highest one.
            await asyncio.wait({self._loading[only]})
            return await self._update(only, waits=waits, retries=retries)
        for name, bundles in load.items():
            if name not in self._loading:
                self._loading[name] = self._tasks.start(self._load_first(name, bundles))
        if not waits:
            return {}
        loads = {name: self._loading[name] for name in load}
        ended = await asyncio.gather(*map(asyncio.shield, loads.values()))
        return {name: failure for name, failure in zip(loads, ended, strict=True) if failure is not None}

    async def _scan(self, only: str, *, retries: bool) -> dict[str, tuple[FoundVersion, ...]]:
        """Scan the folder, unload what has to be unloaded, and return which bundles of each model to try to load.

        With `retries`, bundles of the model `only` that failed before, even beside this scan, are tried again.
        """
        assert self._settings.models is not None
        now_s = time.monotonic()
        try:
            found = await asyncio.to_thread(scan, self._settings.models)
        except OSError as error:
            raise Unavailable(f"the folder of models cannot be read ({error.strerror}): mount it") from None
        self._report(found)
        bundles = {bundle for folder in found.values() for bundle in folder.bundles.values()}
        on_demand = await asyncio.to_thread(_on_demand, bundles, self._settings)
        for each in self._versions.failed:
            # Without a version that answers, the next request tries a version on demand again.
            retried = each.retried and (each.facts is None or each.name in self._versions.current)
            if each.bundle not in bundles or retried or (each.name == only and retries):
                self._versions.forget(each)
        change = changes(
            found,
            {name: version.bundle for name, version in self._versions.current.items()},
            failed={each.bundle for each in self._versions.failed},
            on_demand=on_demand,
            wanted=only,
            unwanted=self._unloaded,
            missing_before={key for key, since_s in self._missing_since.items() if now_s - since_s >= _SECOND_LOOK_S},
        )
        if found:
            self._versions.offer([bundle for name, bundle in change.offer.items() if name not in self._loading])
        self._missing_since = {key: self._missing_since.get(key, now_s) for key in change.missing}
        for name in change.unload:
            if only in ("", name):
                self._versions.retire(name)
        return {name: bundles for name, bundles in change.load.items() if only in ("", name)}

    def _report(self, found: Mapping[str, FoundModel]) -> None:
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

    async def _load_first(self, name: str, bundles: tuple[FoundVersion, ...]) -> ModelVersion | None:
        """Load the first of these bundles that can be served; return the first one that failed, if any did."""
        failure: ModelVersion | None = None
        try:
            for bundle in bundles:
                version = await self._versions.load(bundle, self._is_wanted)
                if version.state is ModelState.FAILED:
                    failure = failure or version
                if version.state is not ModelState.FAILED or name in self._unloaded:
                    break
        finally:
            del self._loading[name]
        return failure

    async def _is_wanted(self, loaded: ModelVersion, before: ModelVersion | None) -> bool:
        """Return whether a loaded version should take over from the version that answers now.

        The model may have been unloaded during the load; or a higher version that was missing may be back.
        """
        if loaded.name in self._unloaded:
            return False
        if before is None or before.number <= loaded.number or self._settings.models is None:
            return True
        try:
            found = await asyncio.to_thread(scan, self._settings.models)
        except OSError:
            return False
        return before.name not in found or not found[before.name].may_hold(before.number)


def _log_error() -> None:
    """Log the error of a task, except what its caller is told."""
    if not isinstance(sys.exception(), Unavailable):
        log.error("the repository of models failed", exc_info=True)


def _on_demand(bundles: Iterable[FoundVersion], settings: Settings) -> set[FoundVersion]:
    """Return the bundles that wait for a request; the load of a bundle that cannot be read says what is wrong."""
    waiting = set()
    for bundle in bundles:
        with suppress(ModelRefused, SettingsError):
            if not describe(bundle, settings).pinned:
                waiting.add(bundle)
    return waiting


def _require_name(name: str) -> None:
    if not name:
        raise InvalidInput("the request names no model: send the name of the model to load or unload", field="name")
