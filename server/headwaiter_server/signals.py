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

    After SIGTERM, the drain begins when load balancers have had time to learn that the server is leaving. SIGINT lets
    the drain begin at once. SIGHUP lets the server read the files of tokens and of TLS again.

    Raises:
        ModelRefused: the model must not be served.
        DeviceLost: a device died or hangs.
        CannotListen: the server cannot listen on one of its ports.
        SettingsError: a file cannot be used.
    """
    stop, stop_at_once = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        stop.set()
        stop_at_once.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
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
        delay_s = settings.drain_delay_s
        if delay_s and not stop_at_once.is_set():
            log.info("leaving: health checks report NOT_SERVING, new requests are answered for %g s", delay_s)
            server.leave()
            interrupted = asyncio.create_task(stop_at_once.wait())
            await _finishes_before(interrupted, asyncio.create_task(server.failed()), delay_s)
    except Exception:
        await server.stop()
        raise
    log.info("draining: answering the admitted requests, refusing new ones")
    await server.drain()
    collecting.cancel()
    log.info("stopped")


async def _finishes_before(
    stopped: "asyncio.Task[bool]", work: "asyncio.Task[None]", timeout_s: float | None = None
) -> bool:
    """Wait for the work, the stop signal or the end of the time; return whether the work finished.

    The work is cancelled if it has not finished.

    Raises:
        Exception: the error of the work.
    """
    await asyncio.wait({work, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.wait({work})
    return False
