"""The devices of a server: which is free next, and how one that died comes back."""

import logging
from collections.abc import Callable, Iterable, Iterator

from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.job import Sequence
from headwaiter_server.scheduling.worker import Worker

log = logging.getLogger(__name__)


class Devices:
    """Workers that take batches from one queue."""

    def __init__(self, workers: Iterable[Worker], on_available: Callable[[bool], None]) -> None:
        """Take over workers.

        Args:
            workers: one for each device, or for each session on it.
            on_available: told False when the last of them died, and True when one is back.
        """
        self._workers = list(workers)
        self._on_available = on_available

    @property
    def living(self) -> int:
        """How many are alive."""
        return sum(worker.alive for worker in self._workers)

    def busy_s(self, now_s: float) -> tuple[float, ...]:
        """Return how long what each living device was given should still take."""
        return tuple(worker.busy_s(now_s) for worker in self._workers if worker.alive)

    def ahead(self) -> Iterator[Sequence]:
        """Yield what waits in planned batches and is still wanted."""
        return (each for worker in self._workers for each in worker.ahead if not each.job.answer.done())

    def wanting(self, now_s: float) -> Worker | None:
        """Return the worker that wants a batch and is free first, if any does."""
        wanting = [worker for worker in self._workers if worker.wants_next_in_s(now_s) <= 0]
        return min(wanting, key=lambda each: each.busy_s(now_s), default=None)

    def wants_next_in_s(self, now_s: float) -> float:
        """Return in how many seconds a worker wants a batch; infinity where that hangs on other things than time."""
        return min((worker.wants_next_in_s(now_s) for worker in self._workers), default=float("inf"))

    def bury(self, worker: Worker, error: Exception) -> None:
        """Give a worker nothing more until `reopen` has brought it back."""
        worker.alive = False
        log.error("the device died: %s", " ".join(str(error).split()))
        if not self.living:
            self._on_available(False)

    async def reopen(self, worker: Worker) -> None:
        """Open the device of a worker anew; give up one that stays dead, if others serve on.

        Raises:
            DeviceLost: it was the last.
        """
        try:
            await worker.reopen()
        except DeviceLost:
            self._workers.remove(worker)
            if not self._workers:
                raise
            log.exception("one of the devices is lost; the others serve on")
            return
        log.info("the device is open again")
        self._on_available(True)

    def close(self) -> None:
        """Take no more work; what runs may still run."""
        for worker in self._workers:
            worker.close()
