"""Wake the scheduler's loop after an event or a time-out."""

import asyncio
from functools import partial


class WakeUp:
    """Lets one task sleep until it is woken or until a time-out; cheaper than asyncio's Event with wait_for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[bool] = self._loop.create_future()

    def set(self, *, timed_out: bool = False) -> None:
        """Wake the task; a task that is not asleep does not sleep until `clear` is called."""
        if not self._woken.done():
            self._woken.set_result(timed_out)

    def clear(self) -> None:
        """Forget that `set` was called."""
        if self._woken.done():
            self._woken = self._loop.create_future()

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until `set` is called or until the time-out, which may be infinite.

        Returns:
            Whether the time-out ended the sleep.
        """
        if timeout_s == float("inf"):
            return await self._woken
        timer = self._loop.call_later(timeout_s, partial(self.set, timed_out=True))
        try:
            return await self._woken
        finally:
            timer.cancel()
