"""Build the server from its settings: listen, load the models, serve, drain."""

import logging
import time

from headwaiter_server.config import Settings
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.front_end import FrontEnd
from headwaiter_server.http import announcements
from headwaiter_server.metrics import Recorder

log = logging.getLogger(__name__)

# The part of a drain that is reserved for sending replies.
_SEND_REPLIES_S = 1.0


class Server:
    """One server with one model or several.

    Attributes:
        port: the port for gRPC; 0 until the server listens.
        metrics_port: the port for HTTP: metrics, health, and requests if `http_api` is on; 0 until the server listens.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        recorder = Recorder(settings.devices)
        self._engine = LocalEngine(settings, recorder, self._report_health)
        self._front_end = FrontEnd(settings, recorder, self._engine)

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
