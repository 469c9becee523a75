"""Run the command headwaiter-server."""

import asyncio
import logging
import os
import sys

from headwaiter_server.config import SettingsError, read_settings


def main() -> int:
    """Serve a bundle.

    Returns:
        The exit code: 0 after a drain, 1 if the bundle cannot be served, 2 if a setting is wrong.
    """
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        return _fail(str(error), 2)
    try:
        from headwaiter_server.app import CannotListen
        from headwaiter_server.process import serve
        from headwaiter_server.runtime.errors import ModelRefused
    except ModuleNotFoundError as missing:
        return _fail(f"{missing.name} is not installed: pip install 'headwaiter[server]'", 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for problem in settings.warnings(os.environ):
        logging.getLogger(__name__).warning(problem)
    try:
        drained = asyncio.run(serve(settings))
    except (CannotListen, ModelRefused) as error:
        return _fail(str(error), 1)
    except SettingsError as error:
        return _fail(str(error), 2)
    if not drained:
        # A normal exit would wait for threads that load a model or run a batch, which cannot be interrupted.
        logging.shutdown()
        os._exit(0)
    return 0


def _fail(message: str, exit_code: int) -> int:
    print(f"headwaiter-server: {message}", file=sys.stderr)
    return exit_code
