"""The devices of a server: which device takes the next batch, and when a device hangs."""

import asyncio
from collections.abc import Callable, Container, Iterable

from headwaiter_server.scheduling.worker import Worker

_WATCH_INTERVAL_S = 1.0


class Devices:
    """The pool of workers that run the batches of all models."""

    def __init__(self, workers: Iterable[Worker], on_ready: Callable[[], None]) -> None:
        """Take over the workers; `on_ready` is called when a worker may want a batch."""
        self.workers = tuple(workers)
        for worker in self.workers:
            worker.on_ready = on_ready

    def busy_s(self, now_s: float, among: Container[Worker]) -> tuple[float, ...]:
        """Return the predicted seconds until each of these workers has run its batches."""
        return tuple(worker.busy_s(now_s) for worker in self.workers if worker in among)

    def next_worker(self, now_s: float, among: Container[Worker]) -> Worker | None:
        """Return the first of these workers to be free of those that want a batch now; None if none of them does."""
        ready = [worker for worker in self.workers if worker in among and worker.wants_batch_in_s(now_s) <= 0]
        return min(ready, key=lambda worker: worker.busy_s(now_s), default=None)

    def wants_batch_in_s(self, now_s: float, among: Container[Worker]) -> float:
        """Return the seconds until one of these workers wants a batch; infinity if none of them does for now."""
        wants_in_s = (worker.wants_batch_in_s(now_s) for worker in self.workers if worker in among)
        return min(wants_in_s, default=float("inf"))

    async def watch(self) -> None:
        """Look for devices that hang, forever.

        Raises:
            DeviceLost: a device hangs.
        """
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            for worker in self.workers:
                worker.check_hung()

    def close(self) -> None:
        """End all workers once they have run the batches that they were given."""
        for worker in self.workers:
            worker.close()
