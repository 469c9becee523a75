"""The devices of a server: which device takes the next batch, which are dead, and how a dead one is reopened."""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable

from headwaiter_server.runtime.errors import BundleChanged, DeviceLost, one_line
from headwaiter_server.scheduling.worker import Session, Worker

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 1.0
# The pause before each attempt to reopen a device; a device that stays dead after the last attempt is lost.
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class Devices:
    """The pool of workers that run the batches of all models.

    Attributes:
        workers: the workers whose devices are not lost.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        sessions: Callable[[Worker], Collection[Session]],
        on_available: Callable[[bool], None],
        on_ready: Callable[[], None],
    ) -> None:
        """Take over the workers.

        Args:
            workers: the workers.
            sessions: returns the sessions that a worker has now, one for each of its models.
            on_available: called with False when the last worker dies, and with True when a worker is alive again.
            on_ready: called when a worker may want a batch.
        """
        self.workers = list(workers)
        for worker in self.workers:
            worker.on_ready = on_ready
        self._sessions = sessions
        self._on_available = on_available

    @property
    def alive_count(self) -> int:
        """Number of workers that are alive."""
        return sum(worker.alive for worker in self.workers)

    def busy_s(self, now_s: float, among: Container[Worker]) -> tuple[float, ...]:
        """Return the predicted seconds until each of these workers has run its batches; not of dead workers."""
        return tuple(worker.busy_s(now_s) for worker in self.workers if worker.alive and worker in among)

    def next_worker(self, now_s: float, among: Container[Worker]) -> Worker | None:
        """Return the first of these workers to be free of those that want a batch now; None if none of them does."""
        ready = [worker for worker in self.workers if worker in among and worker.wants_batch_in_s(now_s) <= 0]
        return min(ready, key=lambda worker: worker.busy_s(now_s), default=None)

    def wants_batch_in_s(self, now_s: float, among: Container[Worker]) -> float:
        """Return the seconds until one of these workers wants a batch; infinity if none of them does for now."""
        wants_in_s = (worker.wants_batch_in_s(now_s) for worker in self.workers if worker in among)
        return min(wants_in_s, default=float("inf"))

    def mark_dead(self, worker: Worker, error: Exception) -> None:
        """Give a worker no batch until `reopen` succeeds."""
        worker.mark_dead(self._sessions(worker))
        log.error("the device died: %s", one_line(error))
        if not self.alive_count:
            self._on_available(False)

    async def reopen(self, worker: Worker) -> None:
        """Reopen the device of a worker; drop a worker whose device stays dead, if other workers are left.

        Raises:
            DeviceLost: the device stays dead, and no other worker is left.
        """
        reason = ""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await worker.reopen(self._sessions(worker))
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed, whatever the error is
                # Keep only the message: the error's traceback would keep the half-open device and its memory alive.
                reason = one_line(error)
                log.warning("the device cannot be reopened: %s", reason)
                if worker.hung or isinstance(error, BundleChanged):
                    break  # Further attempts would fail too.
            else:
                log.info("the device is open again")
                self._on_available(True)
                return
        worker.mark_dead(self._sessions(worker))  # Some sessions may have been reopened before the error.
        self.workers.remove(worker)
        worker.close()
        problem = f"the device died and cannot be reopened ({reason}): check the device, then restart the server"
        if not self.workers:
            raise DeviceLost(problem)
        log.error("a device is lost; the server continues with the other devices: %s", problem)

    async def watch(self) -> None:
        """Give up each device that hangs; its batches fail, as if the device had died."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            for worker in self.workers:
                if worker.check_hung():
                    log.error("a device hangs, so the server stops using it")

    def close(self) -> None:
        """End all workers once they have run the batches that they were given."""
        for worker in self.workers:
            worker.close()
