"""The process of one front end. The engine's process starts it with `front_end.py`, and gives it sockets.

The first socket leads to the engine. The other ones listen for HTTP; all front ends accept their connections.
"""

import asyncio
import ctypes
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headwaiter_server.front_end import CannotListen, FrontEnd
from headwaiter_server.log_lines import configure_logging
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.processes.interpreter import (
    collect_garbage,
    exit_at_once,
    limit_memory_pools,
    tune_garbage_collector,
)
from headwaiter_server.processes.link import Link, Methods
from headwaiter_server.processes.remote_engine import RemoteEngine
from headwaiter_server.settings.credentials import Credentials
from headwaiter_server.settings.flags import Settings
from headwaiter_server.tracing.start import start_tracing

# If the engine has ended, callers get the errors of their requests within this time.
_SEND_ERRORS_S = 0.5
# An engine that is silent for this time hangs.
_ENGINE_SILENT_S, _WATCH_INTERVAL_S = 15.0, 1.0
# prctl's operation that names the signal for the end of the parent; from <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class FrontEndProcess:
    """A front end whose engine is behind a socket.

    Args:
        http_sockets: listen for HTTP.
        name: the name of this process in the log and in metrics.
    """

    def __init__(self, http_sockets: Sequence[socket.socket], name: str) -> None:
        self._http_sockets, self._name = http_sockets, name
        self._methods: Methods = {
            "open": self._open,
            "listen": self._listen,
            "use": self._use,
            "drain": self._drain,
            "wait_until_quiet": self._wait_until_quiet,
            "stop": self._stop,
        }
        self._link = Link("the engine", self._methods)
        self._recorder: Recorder | None = None
        self._front_end: FrontEnd | None = None
        self._listens = False
        self._stopped = asyncio.Event()

    async def serve(self, engine: socket.socket) -> None:
        """Do what the engine says until the engine stops this front end, or has ended."""
        await self._link.open(engine)
        stopped, watching = asyncio.create_task(self._stopped.wait()), asyncio.create_task(self._watch_engine())
        ends: set[asyncio.Future[Any]] = {stopped, self._link.closed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        watching.cancel()
        if not self._stopped.is_set() and self._listens:
            # Link has failed the requests in progress with Unavailable. A kill leaves no line of the engine itself.
            log.error("the engine has ended: new calls fail with UNAVAILABLE, and this front end ends")
            self._opened.drain()
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(2 * _SEND_ERRORS_S):
                    await asyncio.sleep(0)
                    await self._opened.stop_listening(_SEND_ERRORS_S)
        for each in self._http_sockets:
            each.close()
        self._link.close()
        if not self._stopped.is_set() and self._recorder is not None:
            await self._recorder.send_last_spans()

    async def _open(self, settings: Settings, credentials: Credentials) -> None:
        """Become ready to learn the models."""
        recorder = self._recorder = Recorder(process=self._name, tracing=start_tracing(settings, self._name))
        engine = RemoteEngine(settings, recorder, self._link)
        self._methods |= engine.methods
        self._directory = engine.directory
        self._front_end = FrontEnd(settings, recorder, engine, credentials, self._http_sockets)

    async def _listen(self) -> tuple[int, int, int] | Exception:
        """Listen on the ports, and return those for gRPC, HTTP and metrics, or why the front end cannot listen."""
        try:
            await self._opened.listen()
        except CannotListen as error:
            return error
        self._listens = True
        return self._opened.port, self._opened.http_port, self._opened.metrics_port

    async def _watch_engine(self) -> None:
        """Report NOT_SERVING while the engine is silent; a working engine asks for counts every few seconds."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            answers = time.monotonic() - self._link.heard_s < _ENGINE_SILENT_S
            if self._listens and self._directory.reachable is not answers:
                log.warning(
                    "the engine %s", "answers again" if answers else f"has been silent for {_ENGINE_SILENT_S:g} s"
                )
                self._directory.reachable = answers
                self._directory.notify()

    async def _use(self, credentials: Credentials) -> None:
        self._opened.use(credentials)

    async def _drain(self) -> None:
        self._opened.drain()

    async def _wait_until_quiet(self, end_s: float) -> int:
        """Return the number of requests without a reply, once there are none, at the latest at `end_s`."""
        await self._opened.wait_until_quiet(end_s)
        return self._opened.unanswered_count

    async def _stop(self, grace_s: float) -> None:
        """Stop listening, and send the last spans; the engine kills a process that goes on long after its answer."""
        await self._opened.stop_listening(grace_s)
        if self._recorder is not None:
            await self._recorder.send_last_spans()
        self._stopped.set()

    @property
    def _opened(self) -> FrontEnd:
        assert self._front_end is not None
        return self._front_end


async def _main(engine: socket.socket, http_sockets: Sequence[socket.socket], name: str) -> None:
    tune_garbage_collector()
    collecting = asyncio.create_task(collect_garbage())
    await FrontEndProcess(http_sockets, name).serve(engine)
    collecting.cancel()
    exit_at_once(0)


def main() -> None:
    """Run a front end with the arguments of the command line: its number, format and level of the log, its sockets."""
    if sys.platform == "linux":
        # A stopped process keeps the ports. If the engine's process ends, let this process go on: it learns from its
        # socket that the engine has ended, answers its callers, and ends. SIGKILL would leave the callers unanswered.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    limit_memory_pools()
    number, log_format, log_level, *files = sys.argv[1:]
    name = f"front end {number}"
    configure_logging(log_format, log_level, name)
    engine, *http_sockets = (socket.socket(fileno=int(file)) for file in files)
    asyncio.run(_main(engine, http_sockets, name))
