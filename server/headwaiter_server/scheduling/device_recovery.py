"""Reopen a dead device, in several attempts with pauses between them."""

import asyncio
import logging
from collections.abc import Callable, Collection

from headwaiter_server.runtime.errors import BundleChanged, DeviceLost, one_line
from headwaiter_server.scheduling.worker import Session, Worker

log = logging.getLogger(__name__)

# The pause before each attempt; a device that stays dead after the last attempt is lost.
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


async def reopen_device(worker: Worker, sessions: Callable[[], Collection[Session]]) -> None:
    """Reopen the device of a dead worker; the worker is alive afterwards.

    `sessions` returns the sessions that the device has now.

    Raises:
        DeviceLost: the last attempt failed, or no further attempt can succeed.
    """
    reason = ""
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            await worker.reopen(sessions())
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed, whatever the error is
            # Keep only the message: the error's traceback would keep the half-open device and its memory alive.
            reason = one_line(error)
            log.warning("the device cannot be reopened: %s", reason)
            if worker.hung or isinstance(error, BundleChanged):
                break  # Further attempts would fail too.
        else:
            log.info("the device is open again")
            return
    raise DeviceLost(f"the device died and cannot be reopened ({reason}): check the device, then restart the server")
