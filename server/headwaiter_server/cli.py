"""Run the command headwaiter-server."""

import asyncio
import logging
import os
import signal
import sys

from headwaiter_server.log_lines import configure_logging, write_last_line
from headwaiter_server.processes.interpreter import exit_at_once, limit_memory_pools
from headwaiter_server.settings.flags import SettingsError, read_settings


def main() -> int:
    """Serve a bundle.

    Returns:
        The exit code: 0 after a drain, 1 if no bundle can be served or the server fails, 2 if a setting is wrong, 3 if
        a device died or hangs.
    """
    limit_memory_pools()
    # The imports take long enough for a SIGHUP to arrive, which would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        return _fail(str(error), 2)
    # gRPC's core bypasses Python's logging with a line for every failed TLS handshake, so callers could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from headwaiter_server.front_end import CannotListen
        from headwaiter_server.runtime.errors import DeviceLost, ModelRefused
        from headwaiter_server.signals import serve
    except ModuleNotFoundError as missing:
        return _fail(f"{missing.name} is not installed: pip install 'headwaiter[server]'", 1)
    configure_logging(settings.log_format, settings.log_level)
    for problem in settings.warnings(os.environ):
        logging.getLogger(__name__).warning(problem)

    async def serve_and_exit() -> int:
        try:
            await serve(settings)
        except DeviceLost as error:
            logging.getLogger(__name__).error("%s; the server ends, and its supervisor must start it again", error)
            exit_at_once(3)
        except (CannotListen, ModelRefused, SettingsError) as error:
            exit_code = 2 if isinstance(error, SettingsError) else 1
            if settings.log_format == "text":
                return _fail(str(error), exit_code)
            logging.getLogger(__name__).error("%s", error)
            return exit_code
        except Exception:
            logging.getLogger(__name__).exception("the server failed")
            exit_at_once(1)
        return exit_at_once(0)

    return asyncio.run(serve_and_exit())


def _fail(message: str, exit_code: int) -> int:
    write_last_line(f"headwaiter-server: {message}")
    return exit_code
