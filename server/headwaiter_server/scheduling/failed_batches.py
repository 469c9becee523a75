"""Finds out what is to blame for a batch that failed: single sequences, each of which fails alone, or the device."""

from collections.abc import Awaitable, Callable

from headwaiter_server.errors import HeadwaiterError, InferenceFailed, Unavailable
from headwaiter_server.scheduling.job import Job, Sequence
from headwaiter_server.scheduling.worker import Worker


class Faults:
    """Looks into batches that failed.

    On a device in order a batch is halved and tried again, so that a sequence the model fails on fails alone. A dead
    device is buried, and what it was given is answered Unavailable.
    """

    def __init__(
        self,
        try_again: Callable[[Worker, tuple[Sequence, ...]], Awaitable[Exception | None]],
        give_up: Callable[[Job, HeadwaiterError], None],
        bury: Callable[[Worker, Exception], None],
    ) -> None:
        """Say what to do with what is found.

        Args:
            try_again: runs sequences and hands out their answers, or returns what the device raised.
            give_up: fails a request, or a sequence of it.
            bury: marks a device dead and has it reopened.
        """
        self._try_again = try_again
        self._give_up = give_up
        self._bury = bury

    async def blame(self, worker: Worker, batch: tuple[Sequence, ...], error: Exception) -> None:
        """Fail the sequences that a batch failed for, or find the device dead."""
        if worker.alive and await worker.answers():
            await self._divide(worker, batch, error, [])
        else:
            self._abandon(worker, batch, error)

    async def _divide(
        self, worker: Worker, batch: tuple[Sequence, ...], error: Exception, blamed: list[Sequence]
    ) -> None:
        """Halve a batch that failed, and try again, until the sequence to blame is alone."""
        # Where more than one seems to be at fault, the device may have died meanwhile.
        if not worker.alive or (blamed and len(batch) == 1 and not await worker.answers()):
            self._abandon(worker, batch, error)
        elif len(batch) == 1:
            blamed.append(batch[0])
            failure = sequence_failed(batch[0], "the model failed on it")
            failure.__cause__ = error
            self._give_up(batch[0].job, failure)
        else:
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                # By now a request may have been cancelled, or given up for another of its sequences.
                wanted = tuple(sequence for sequence in half if not sequence.job.answer.done())
                if wanted and (again := await self._try_again(worker, wanted)) is not None:
                    await self._divide(worker, wanted, again, blamed)

    def _abandon(self, worker: Worker, batch: tuple[Sequence, ...], error: Exception) -> None:
        """Answer what was given to a dead device, and bury it, unless that is done."""
        for sequence in batch:
            self._give_up(sequence.job, device_failed())
        if worker.alive:
            self._bury(worker, error)


def sequence_failed(sequence: Sequence, what: str) -> InferenceFailed:
    """Return the failure of one sequence."""
    return InferenceFailed(f"sequence {sequence.index}: {what}", sequence=sequence.index)


def device_failed() -> Unavailable:
    """Return the failure of all that a dead device was to answer."""
    return Unavailable("the device failed and is being reopened: try another replica, or again in some seconds")
