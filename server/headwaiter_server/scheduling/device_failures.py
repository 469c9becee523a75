"""Find the sequences that kill devices: remember what ran when a device died, and run it alone next time."""

import hashlib
from collections.abc import Callable

from headwaiter_proto.rules.errors import InferenceFailed
from headwaiter_server.scheduling.errors import device_failed_request
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Batch, Sequence

# A sequence may kill this number of devices. Then its request fails, and the sequence does not run again for an hour.
_MAX_FAILURES = 2
# A sequence that was running when devices died by chance is not refused for ever.
_REMEMBERED_S = 3600.0
_MAX_REMEMBERED = 8192


class DeviceFailures:
    """Counts for each sequence the devices that died while they ran the sequence, and isolates these sequences.

    A sequence whose count is not 0 is a *suspect*. A suspect runs alone in its batch, so that its neighbours are not
    suspected with it, and only one suspect is in the queue or on a device at a time, because sessions of one GPU can
    die together. A suspect that has run is no longer one.

    A caller may count the failures too and send the number with its request, because each server counts only its own.
    """

    def __init__(self, pending: Pending, clock: Callable[[], float]) -> None:
        """Isolate the sequences of a queue.

        Args:
            pending: the queue.
            clock: the clock after which failures are forgotten.
        """
        self._pending = pending
        self._clock = clock
        # The failures of each sequence and the time of the last one, the oldest first, by the sequence's hash.
        self._failures: dict[bytes, tuple[int, float]] = {}
        # Suspects that wait for the current suspect; they are not in the queue.
        self._waiting = Pending()
        self._current: Sequence | None = None
        self._current_runs = False

    @property
    def waiting_sequences(self) -> int:
        """Number of suspects that wait for their turn outside the queue."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Number of tokens of these suspects."""
        return self._waiting.tokens

    def isolate(self, batch: Batch) -> Batch:
        """Return the part of a planned batch that may run together.

        Suspects leave the queue and wait, or fail if they killed too many devices.
        """
        self._forget_old()
        if not self._failures and not any(sequence.request.device_failures for sequence in batch):
            return batch
        allowed = []
        for sequence in batch:
            remembered = self._remembered(sequence)
            failures = 0 if sequence is self._current else max(remembered, sequence.request.device_failures)
            refused = remembered >= _MAX_FAILURES
            if failures or refused:
                self._pending.discard(sequence)
            if refused:
                sequence.request.not_started.discard(sequence)
                sequence.request.fail(_killed_devices(sequence.index))
            elif failures:
                self._waiting.add(sequence)
            else:
                allowed.append(sequence)
        if allowed and allowed[0] is self._current:
            return (allowed[0],)
        return tuple(sequence for sequence in allowed if sequence is not self._current)

    def start(self, batch: Batch) -> None:
        """Note that a batch was given to a device."""
        self._current_runs |= self._current in batch

    def end(self, batch: Batch, ran: Batch = ()) -> None:
        """Note that the sequences of a batch have their results or errors, and which of them the device has run."""
        if self._current in batch:
            self._current, self._current_runs = None, False
        if self._failures:
            for sequence in ran:
                self._failures.pop(_hash(sequence), None)

    def admit_next(self) -> None:
        """Put the next suspect into the queue, if the last one has left the queue and its device."""
        if self._current is not None and not self._current_runs and self._current not in self._pending:
            self._current = None
        while self._current is None and self._waiting:
            suspect = next(iter(self._waiting.by_fair_start()))
            self._waiting.remove(suspect)
            if not suspect.request.answer.done():
                self._pending.add(suspect)
                self._current = suspect

    def fail_batch(self, batch: Batch) -> None:
        """Fail the requests of a batch whose device died while it ran the batch.

        Only a sequence that ran alone is blamed for a second failure.
        """
        for sequence in batch:
            before = max(self._remembered(sequence), sequence.request.device_failures)
            failures = before + 1 if len(batch) == 1 else max(before, 1)
            self._remember(sequence, failures)
            if failures < _MAX_FAILURES:
                sequence.request.fail(device_failed_request())
            else:
                # The whole request fails, even if it accepts a partial answer: the device of its other sequences died.
                sequence.request.fail_whole(_killed_devices(sequence.index))

    def _remembered(self, sequence: Sequence) -> int:
        return self._failures.get(_hash(sequence), (0, 0.0))[0] if self._failures else 0

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._failures and now_s - next(iter(self._failures.values()))[1] >= _REMEMBERED_S:
            del self._failures[next(iter(self._failures))]

    def _remember(self, sequence: Sequence, failures: int) -> None:
        key = _hash(sequence)
        self._failures.pop(key, None)
        self._failures[key] = failures, self._clock()
        if len(self._failures) > _MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]


def _hash(sequence: Sequence) -> bytes:
    return hashlib.blake2b(sequence.values.tobytes(), digest_size=16).digest()


def _killed_devices(index: int) -> InferenceFailed:
    """Return the error of the sequence at an index that ran alone when a second device died."""
    return InferenceFailed(
        f"{_MAX_FAILURES} devices failed while they ran sequence {index}: change or leave out this sequence",
        sequence=index,
    )
