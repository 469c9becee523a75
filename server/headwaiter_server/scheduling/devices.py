"""The devices of a server: which device takes the next batch, and which devices are dead."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from headwaiter_server.runtime.errors import DeviceLost, one_line
from headwaiter_server.scheduling.device_recovery import reopen_device
from headwaiter_server.scheduling.queued_request import Sequence
from headwaiter_server.scheduling.worker import Worker

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 1.0


class Devices:
    """Workers that take batches from one queue."""

    def __init__(
        self, workers: Iterable[Worker], on_available: Callable[[bool], None], on_ready: Callable[[], None]
    ) -> None:
        """Take over the workers.

        Args:
            workers: one for each session on each device.
            on_available: called with False when the last worker dies, and with True when a worker is alive again.
            on_ready: called when a worker may want a batch.
        """
        self._workers = list(workers)
        for worker in self._workers:
            worker.on_ready = on_ready
        self._on_available = on_available

    @property
    def alive_count(self) -> int:
        """Number of workers that are alive."""
        return sum(worker.alive for worker in self._workers)

    def busy_s(self, now_s: float) -> tuple[float, ...]:
        """Return for each worker that is alive the predicted seconds until its batches are done."""
        return tuple(worker.busy_s(now_s) for worker in self._workers if worker.alive)

    @property
    def planned_sequences(self) -> list[Sequence]:
        """The sequences of planned batches that have not started, without sequences of answered requests."""
        return [
            sequence
            for worker in self._workers
            for sequence in worker.planned_sequences
            if not sequence.request.answer.done()
        ]

    @property
    def planned_tokens(self) -> int:
        """Number of tokens of these sequences."""
        return sum(sequence.length_tokens for sequence in self.planned_sequences)

    def next_worker(self, now_s: float) -> Worker | None:
        """Return the worker that wants a batch now and is free first; None if no worker wants a batch."""
        ready = [worker for worker in self._workers if worker.wants_batch_in_s(now_s) <= 0]
        return min(ready, key=lambda worker: worker.busy_s(now_s), default=None)

    def wants_batch_in_s(self, now_s: float) -> float:
        """Return in how many seconds a worker wants its next batch; infinity if no worker wants one for now."""
        return min((worker.wants_batch_in_s(now_s) for worker in self._workers), default=float("inf"))

    def mark_dead(self, worker: Worker, error: Exception) -> None:
        """Give a worker no batch until `reopen` succeeds."""
        worker.mark_dead()
        log.error("the device died: %s", one_line(error))
        if not self.alive_count:
            self._on_available(False)

    async def reopen(self, worker: Worker) -> None:
        """Reopen the device of a worker; drop a worker whose device stays dead, if other workers are left.

        Raises:
            DeviceLost: the device stays dead, and no other worker is left.
        """
        try:
            await reopen_device(worker)
        except DeviceLost:
            self._workers.remove(worker)
            worker.close()
            if not self._workers:
                raise
            log.exception("a device is lost; the server continues with the other devices")
        else:
            self._on_available(True)

    async def watch(self) -> None:
        """Give up each device that hangs; its batches fail, as if the device had died."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            for worker in self._workers:
                if worker.check_hung():
                    log.error("a device hangs, so the server stops using it")

    def close(self) -> None:
        """End all workers once they have run the batches that they were given."""
        for worker in self._workers:
            worker.close()
