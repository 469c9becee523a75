"""The chunks of a stream, without I/O: the one that is being filled, those to send, and those in flight."""

import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from headwaiter_client.calls.splitting import Chunk, ChunkBuilder, ChunkLimits, SequenceConverter

# Sequences are sent this long after the first of them was read, even if they do not fill a request.
_MAX_WAIT_S = 0.1


class Sent(Protocol):
    """A chunk that was sent: a future or a task."""

    def done(self) -> bool:
        """Return whether the chunk has a result or an error."""


_Pending = TypeVar("_Pending", bound=Sent)


class StreamQueue(Generic[_Pending]):
    """Decides which chunks of a stream are sent, and when.

    Args:
        limits: the limits of a chunk.
        converter: converts the sequences.
        send: starts to send a chunk, and returns its future or its task.
        max_in_flight: maximum number of chunks that were sent and whose results were not taken.
        ordered: whether results are taken in the order of the source.

    Attributes:
        pending: the chunks that were sent and whose results were not taken.
    """

    def __init__(
        self,
        limits: ChunkLimits,
        converter: SequenceConverter,
        send: Callable[[Chunk], _Pending],
        max_in_flight: int,
        ordered: bool,
    ) -> None:
        self.pending: list[_Pending] = []
        self._builder = ChunkBuilder(limits)
        self._converter = converter
        self._send = send
        self._max_in_flight = max_in_flight
        self._ordered = ordered
        self._to_send: list[Chunk] = []
        self._due_s = 0.0
        self._taken = 0

    @property
    def has_room(self) -> bool:
        """Whether to read on: with a full chunk, one more request could be sent."""
        return len(self.pending) + self._taken + len(self._to_send) < self._max_in_flight

    @property
    def is_empty(self) -> bool:
        """Whether no sequence waits to be sent, and no result waits to be taken."""
        return not (self.pending or self._to_send or self._builder.holds_sequences)

    @property
    def candidates(self) -> list[_Pending]:
        """The sent chunks whose result may be taken next: only the oldest if ordered, else all."""
        return self.pending[:1] if self._ordered else self.pending

    def add(self, sequence: Any) -> None:
        """Add the next sequence of the source, and send the chunk that it completes.

        Raises:
            InvalidInput: the sequence cannot be sent.
        """
        held = self._builder.holds_sequences
        full = self._builder.add(self._converter.convert([sequence]))
        if full or not held:
            self._due_s = time.monotonic() + _MAX_WAIT_S
        self._to_send += full
        self.send_due()

    def finish(self) -> None:
        """Send what has been read; the source has ended."""
        self._to_send += self._builder.finish()
        self.send_due()

    def until_due_s(self) -> float | None:
        """Return the seconds until `send_due` would send sequences; None if it would send nothing."""
        if not self._builder.holds_sequences or not self.has_room:
            return None
        return max(0.0, self._due_s - time.monotonic())

    def send_due(self) -> None:
        """Send the chunks that are full or have waited long enough, as far as `max_in_flight` allows."""
        if self.until_due_s() == 0.0:
            self._to_send += self._builder.finish()
        while self._to_send and len(self.pending) + self._taken < self._max_in_flight:
            self.pending.append(self._send(self._to_send.pop(0)))

    def take_done(self) -> _Pending | None:
        """Remove and return a sent chunk that is done and whose result may be taken next; None if there is none.

        The chunk counts as in flight until `release`: the reader still has to look at its results.
        """
        done = next((sent for sent in self.candidates if sent.done()), None)
        if done:
            self.pending.remove(done)
            self._taken = 1
        return done

    def release(self) -> None:
        """Make room for another request: the reader of the results comes back for the next one."""
        self._taken = 0
