"""Run the sequences that may kill a device one at a time, each alone in its batch."""

from headwaiter_proto.rules.errors import InferenceFailed
from headwaiter_server.scheduling.errors import device_failed_request
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Batch, Sequence


class Suspects:
    """Isolates the sequences of requests that another server's device ran when the device died.

    The caller counts these deaths and sends the number with the request, because a server whose device dies ends. Such
    a sequence is a *suspect*. A suspect runs alone in its batch, and only one suspect is in the queue or on a device at
    a time, because all sessions of one GPU die together.
    """

    def __init__(self, pending: Pending) -> None:
        """Isolate the suspects of a queue; `pending` holds its waiting sequences."""
        self._pending = pending
        # Suspects that wait for the current suspect; they are not in the queue.
        self._waiting = Pending()
        self._current: Sequence | None = None
        self._current_runs = False

    def __bool__(self) -> bool:
        """Return whether a suspect waits or runs."""
        return self._current is not None or bool(self._waiting)

    def add(self, suspect: Sequence) -> None:
        """Let a suspect wait for its turn."""
        self._waiting.add(suspect)

    def admit_next(self) -> None:
        """Put the next suspect into the queue, if the last one has left the queue and its device."""
        if self._current is not None and not self._current_runs and self._current not in self._pending:
            self._current = None
        while self._current is None and (suspect := self._waiting.leader) is not None:
            self._waiting.remove(suspect)
            if not suspect.request.answer.done():
                self._pending.add(suspect)
                self._current = suspect

    def isolate(self, batch: Batch) -> Batch:
        """Return the part of a planned batch that may run together: the suspect, or all other sequences."""
        if self._current is None:
            return batch
        if self._current in batch[:1]:
            return batch[:1]
        return tuple(sequence for sequence in batch if sequence is not self._current)

    def start(self, batch: Batch) -> None:
        """Note that a batch was given to a device."""
        self._current_runs |= self._is_in(batch)

    def end(self, batch: Batch) -> None:
        """Note that the sequences of a batch have their results or errors."""
        if self._is_in(batch):
            self._current, self._current_runs = None, False

    def _is_in(self, batch: Batch) -> bool:
        return self._current is not None and self._current in batch


def fail_sequence_on_dead_device(sequence: Sequence) -> None:
    """Fail the request of a sequence that a device ran when the device died.

    The caller sends the request to another replica, except if the sequence is a suspect: a suspect ran alone.
    """
    if not sequence.request.job.device_failures:
        sequence.request.fail(device_failed_request())
        return
    problem = f"devices failed twice while they ran sequence {sequence.index}: change or leave out this sequence"
    # The whole request fails, even if it accepts a partial answer: the device of its other sequences died.
    sequence.request.fail_whole(InferenceFailed(problem, sequence=sequence.index))
