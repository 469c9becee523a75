"""Build the server from its settings: listen, load the models, serve, drain."""

import logging
import time

import onnxruntime

from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.front_end import FrontEnd
from headwaiter_server.http import announcements
from headwaiter_server.metrics.definitions import BuildInfo, VersionStates
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.front_end_supervisor import FrontEndSupervisor
from headwaiter_server.runtime.hardware import compute_capability
from headwaiter_server.settings.environment import usable_processors
from headwaiter_server.settings.flags import Settings

log = logging.getLogger(__name__)

# The part of a drain that is reserved for sending replies.
_SEND_REPLIES_S = 1.0
# With a GPU, the engine keeps processors for its event loop and for the threads that feed the GPU.
_ENGINE_PROCESSORS, _MOST_FRONT_ENDS = 2, 12


class Server:
    """One server with one model or several.

    Attributes:
        port: the port for gRPC; 0 until the server listens.
        metrics_port: the port for HTTP: metrics, health, and requests if `http_api` is on; 0 until the server listens.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        recorder = Recorder(settings.devices)
        self._links = links = FrontEndLinks(recorder)
        self._engine = links.engine = LocalEngine(settings, recorder, links, self._report_health)
        directory = self._engine.directory
        recorder.registry.register(VersionStates(lambda: directory.known_versions))
        BuildInfo(recorder.registry, onnxruntime.__version__)
        count = _front_end_count(settings)
        self._front_end: FrontEnd | FrontEndSupervisor = (
            FrontEndSupervisor(settings, count, links) if count else FrontEnd(settings, recorder, self._engine)
        )

    @property
    def port(self) -> int:
        """The port for gRPC; 0 until the server listens."""
        return self._front_end.port

    @property
    def metrics_port(self) -> int:
        """The port for HTTP; 0 until the server listens."""
        return self._front_end.metrics_port

    async def start(self) -> None:
        """Listen on the ports; load, check and warm up the models; then report SERVING to health checks.

        Raises:
            ModelRefused: no model can be served.
            CannotListen: the server cannot listen on one of its ports.
            SettingsError: a file cannot be used.
        """
        await self._front_end.listen()
        try:
            await self._engine.start()
            await self._links.published()
        except BaseException:
            await self._front_end.stop_listening(0)
            raise
        log.info("serving on port %d, metrics on port %d", self.port, self.metrics_port)
        for line in announcements.addresses(self._settings, self.metrics_port):
            log.info(line)
        for line in announcements.warnings(self._settings):
            log.warning(line)

    async def failed(self) -> None:
        """Wait until the engine ends, and raise its error if it has failed: `DeviceLost` if a device is dead."""
        await self._engine.failed()

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
        await self._front_end.stop_listening(reserve_s)
        return not unanswered

    async def stop(self) -> None:
        """Report NOT_SERVING to health checks, send the errors of the failed requests, and stop listening."""
        self._front_end.drain()
        await self._front_end.wait_until_quiet(time.monotonic() + _SEND_REPLIES_S)
        await self._front_end.stop_listening(_SEND_REPLIES_S)

    def _report_health(self) -> None:
        self._front_end.report_health()


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
