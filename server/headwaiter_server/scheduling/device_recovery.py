"""Brings a dead device back: tries to open the device again, with pauses between the attempts."""

import asyncio
import logging

from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.worker import Worker

log = logging.getLogger(__name__)

# The pause before each attempt; a device that stays dead after the last attempt is lost.
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


async def reopen_device(worker: Worker) -> None:
    """Open the device of a dead worker again; the worker is alive afterwards.

    Raises:
        DeviceLost: the device stayed dead.
    """
    reason = ""
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            await worker.reopen()
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed, whatever the error is
            # Keep only the text: the traceback of the error would keep the half-open device, and its memory, alive.
            reason = " ".join(str(error).split())
            log.warning("the device cannot be reopened: %s", reason)
        else:
            log.info("the device is open again")
            return
    raise DeviceLost(f"the device died and cannot be reopened: {reason}")
