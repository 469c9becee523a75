"""Build the server from its settings: listen, load the models, serve, drain."""

import asyncio
import logging
import os
import time
from contextlib import suppress
from importlib.metadata import version

import onnxruntime

from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.front_end import FrontEnd
from headwaiter_server.http import announcements
from headwaiter_server.metrics.definitions import BuildInfo, VersionStates
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.front_end_supervisor import FrontEndSupervisor
from headwaiter_server.runtime.hardware import compute_capability
from headwaiter_server.settings.credentials import CredentialFiles
from headwaiter_server.settings.environment import revision, usable_processors
from headwaiter_server.settings.flags import Settings
from headwaiter_server.tracing.start import start_tracing

log = logging.getLogger(__name__)

# The part of a drain that is reserved for sending replies.
_SEND_REPLIES_S = 1.0
# With a GPU, the engine keeps processors for its event loop and for the threads that feed the GPU.
_ENGINE_PROCESSORS, _MOST_FRONT_ENDS = 2, 12
# The server checks at this interval whether the files of tokens and of TLS have changed.
_FILE_CHECK_INTERVAL_S = 1.0


class Server:
    """One server with one model or several.

    Attributes:
        port: the port for gRPC; 0 until the server listens.
        http_port: the port of `Settings.http_host_and_port`; 0 until the server listens.
        metrics_port: the port for metrics and health without TLS, `http_port` if requests have no port of their own; 0
            until the server listens.
    """

    def __init__(self, settings: Settings) -> None:
        """Create a server in a running event loop.

        Raises:
            SettingsError: a file cannot be used.
        """
        self._settings = settings
        self._files = CredentialFiles(settings)
        self._recorder = recorder = Recorder(settings.devices, tracing=start_tracing(settings, "engine"))
        self._engine = engine = LocalEngine(settings, recorder)
        recorder.registry.register(VersionStates(lambda: engine.directory.known_versions))
        BuildInfo(recorder.registry, onnxruntime.__version__, revision(os.environ))
        self._links = links = FrontEndLinks(engine, recorder)
        count, credentials = _front_end_count(settings), self._files.current
        self._front_end: FrontEnd | FrontEndSupervisor = (
            FrontEndSupervisor(settings, count, links, credentials)
            if count
            else FrontEnd(settings, recorder, engine, credentials)
        )
        self._asked_to_read = asyncio.Event()
        self._tasks = BackgroundTasks()

    @property
    def port(self) -> int:
        """The port for gRPC; 0 until the server listens."""
        return self._front_end.port

    @property
    def http_port(self) -> int:
        """The port for HTTP; 0 until the server listens."""
        return self._front_end.http_port

    @property
    def metrics_port(self) -> int:
        """The port for metrics; 0 until the server listens."""
        return self._front_end.metrics_port

    async def start(self) -> None:
        """Listen on the ports; load, check and warm up the models; then report SERVING to health checks.

        Raises:
            ModelRefused: no model can be served.
            CannotListen: the server cannot listen on one of its ports.
        """
        await self._front_end.listen()
        self._tasks.start(self._follow_files())
        try:
            await self._engine.start()
            await self._links.published()
        except BaseException:
            await self._stop_listening(0)
            raise
        log.info(
            "serving on port %d, metrics on port %d: headwaiter %s (commit %s); models: %s; flags: %s",
            self.port,
            self.metrics_port,
            version("headwaiter"),
            revision(os.environ),
            ", ".join(map(_served, self._engine.directory.current)),
            self._settings.changed_flags(),
        )
        for line in announcements.addresses(self._settings, self.http_port):
            log.info(line)
        for line in announcements.warnings(self._settings):
            log.warning(line)

    def read_files_again(self) -> None:
        """Read the files of tokens and of TLS again soon, whether they have changed or not."""
        self._asked_to_read.set()

    async def _follow_files(self) -> None:
        """Check the files of tokens and of TLS every second, and use their content when it changes."""
        changed, files = False, self._files
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FILE_CHECK_INTERVAL_S):
                    await self._asked_to_read.wait()
            asked = self._asked_to_read.is_set()
            self._asked_to_read.clear()
            try:
                # If the front end raises an error, the next check tries again.
                changed |= await asyncio.to_thread(files.refresh, at_once=asked)
                if changed:
                    self._front_end.use(files.current)
                    changed = False
                elif asked:
                    log.info("SIGHUP: no file of tokens or of TLS holds anything new")
            except Exception:
                log.exception("the files of tokens and of TLS cannot be read again")

    async def failed(self) -> None:
        """Wait until the engine ends, and raise its error if it has failed: `DeviceLost` if a device is dead."""
        await self._engine.failed()

    def leave(self) -> None:
        """Report NOT_SERVING to health checks, and go on answering requests, new ones too."""
        self._engine.directory.leaving = True
        self._engine.directory.notify()

    async def drain(self) -> bool:
        """Report NOT_SERVING to health checks, answer the admitted requests, and stop listening.

        Returns:
            Whether all admitted requests were answered in time.
        """
        drain_s = self._settings.drain_s
        end_s, reserve_s = time.monotonic() + drain_s, min(_SEND_REPLIES_S, drain_s / 4)
        self._front_end.drain()
        unanswered = await self._engine.drain(drain_s - reserve_s)
        await self._front_end.wait_until_quiet(end_s - reserve_s)
        unanswered = max(unanswered, self._front_end.unanswered_count)
        if unanswered:
            log.warning("%d requests are unanswered after a drain of %g s", unanswered, drain_s)
        await self._stop_listening(reserve_s)
        return not unanswered

    async def stop(self) -> None:
        """Report NOT_SERVING to health checks, send the errors of the failed requests, and stop listening."""
        self._front_end.drain()
        await self._front_end.wait_until_quiet(time.monotonic() + _SEND_REPLIES_S)
        await self._stop_listening(_SEND_REPLIES_S)

    async def _stop_listening(self, grace_s: float) -> None:
        self._tasks.cancel()
        await self._front_end.stop_listening(grace_s)
        await self._recorder.send_last_spans()


def _served(model: ServedModel) -> str:
    """Return which bundle a model is, and where it runs, on CUDA with the numbers of the GPUs."""
    facts = model.facts
    gpus = "" if facts.provider == "cpu" else f" {','.join(map(str, sorted(set(facts.devices))))}"
    return f"{facts.name} version {facts.version} (digest {facts.digest[:12]}, {facts.provider}{gpus})"


def _front_end_count(settings: Settings) -> int:
    """Return the number of processes for front ends; 0 for a front end in the process of the models."""
    if settings.front_ends == "auto":
        # One process cannot feed a GPU. On a CPU, the processes would take the cores that the model needs.
        has_gpu = settings.provider != "cpu" and compute_capability(settings.devices[0]) is not None
        count = max(0, min(_MOST_FRONT_ENDS, usable_processors() - _ENGINE_PROCESSORS)) if has_gpu else 0
    else:
        count = settings.front_ends
    # Each front end answers at least one call.
    return min(count, settings.max_calls)
