"""Run a server as a process until a signal arrives or the scheduler fails."""

import asyncio
import logging
import signal

from headwaiter_server.app import Server
from headwaiter_server.processes.interpreter import collect_garbage, tune_garbage_collector
from headwaiter_server.settings.file_descriptors import raise_limit
from headwaiter_server.settings.flags import Settings

log = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain; threads may still be busy when this returns.

    SIGHUP lets the server read the files of tokens and of TLS again.

    Raises:
        ModelRefused: the model must not be served.
        DeviceLost: a device died or hangs.
        CannotListen: the server cannot listen on one of its ports.
        SettingsError: a file cannot be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    raise_limit()
    server = Server(settings)
    loop.add_signal_handler(signal.SIGHUP, server.read_files_again)
    stopped = asyncio.create_task(stop.wait())
    if not await _finishes_before(stopped, asyncio.create_task(server.start())):
        log.info("stopped by a signal during start-up")
        return
    tune_garbage_collector()
    collecting = asyncio.create_task(collect_garbage())
    try:
        await _finishes_before(stopped, asyncio.create_task(server.failed()))
    except Exception:
        await server.stop()
        raise
    log.info("draining: answering the admitted requests, refusing new ones")
    await server.drain()
    collecting.cancel()
    log.info("stopped")


async def _finishes_before(stopped: "asyncio.Task[bool]", work: "asyncio.Task[None]") -> bool:
    """Wait for the work or the stop signal; cancel the work on the signal. Return whether the work finished.

    Raises:
        Exception: the error of the work.
    """
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.wait({work})
    return False
