"""Cuts sequences into requests that a server takes."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headwaiter_client.calls.inputs import Form, form_of
from headwaiter_client.errors import HeadwaiterError, InvalidInput, MessageTooLarge
from headwaiter_proto import encoder_pb2 as pb

# Enough to fill batches, few enough to see progress and to share the work among replicas.
_MOST_SEQUENCES = 256
# Room in a message for all that is not sequences.
_ENVELOPE_BYTES = 1024
# Rows of hidden states make replies a thousand times their requests.
_MOST_HIDDEN_BYTES = 8 << 20
_FLOAT_BYTES = 4
# What is in flight should take the server this share of a request's deadline, and leave it the rest for others' work.
_DEADLINE_SHARE = 0.25
# A stream whose sequences take longer to read than this sends what it has, rather than fill a request.
_PATIENCE_S = 0.1


@dataclass(frozen=True)
class Limits:
    """What one request may hold.

    Attributes:
        sequences: most sequences.
        tokens: most tokens of all sequences.
        size_bytes: largest message.
        text_tokens: most tokens of one text.
    """

    sequences: int
    tokens: int
    size_bytes: int
    text_tokens: int


# Less than servers are set to take: so much goes without asking what this one takes.
UNASKED = Limits(sequences=32, tokens=4096, size_bytes=1 << 16, text_tokens=4096)


@dataclass
class Chunk:
    """The sequences of one request.

    Attributes:
        form: what the sequences are.
        first: index of the first one in the caller's list.
        sequences: as they will be sent.
        failures: why an empty one stands for a sequence, by its index in the caller's list.
        hurried: whether it goes before it is full, for its source is slow.
    """

    form: Form
    first: int
    sequences: list[Any]
    failures: dict[int, HeadwaiterError] = field(default_factory=dict)
    hurried: bool = False


class Cutter:
    """Cuts what it is given into chunks within the limits; a sequence beyond them by itself is alone in its chunk.

    Args:
        limits: of a request.
        form: what the sequences are; as the first one looks when None.
        partial: let an empty sequence stand for one that cannot be sent, rather than raise.
    """

    def __init__(self, limits: Limits, form: Form | None, *, partial: bool) -> None:
        self._limits = limits
        self._form = form
        self._partial = partial
        self._count = 0
        self._chunk: Chunk | None = None
        self._tokens = 0
        self._size_bytes = 0
        self._read_s = 0.0

    def add(self, sequence: Any, read_s: float = 0.0) -> list[Chunk]:
        """Takes the next sequence, and returns what can be sent: chunks without room, or that were long in the making.

        Args:
            sequence: as the caller has it.
            read_s: seconds that its source took to give it.

        Raises:
            InvalidInput: it cannot be sent.
        """
        self._form = form = self._form or form_of(sequence)
        failures: dict[int, HeadwaiterError] = {}
        try:
            sequence = form.read(self._count, sequence)
        except InvalidInput as error:
            sequence = form.empty()
            if sequence is None or not self._partial:
                raise
            failures[self._count] = error
        tokens, size_bytes = form.size(sequence, self._limits.text_tokens)
        done = []
        if self._chunk is None or not self._has_room(self._chunk, tokens, size_bytes):
            done = self.end()
            self._chunk = Chunk(form, self._count, [])
            self._tokens, self._size_bytes, self._read_s = 0, _ENVELOPE_BYTES, 0.0
        self._chunk.sequences.append(sequence)
        self._chunk.failures.update(failures)
        self._count += 1
        self._tokens += tokens
        self._size_bytes += size_bytes
        self._read_s += read_s
        if self._read_s > _PATIENCE_S:
            self._chunk.hurried = True
            done += self.end()
        return done

    def end(self) -> list[Chunk]:
        """Returns the chunk that was begun, if there is one."""
        begun, self._chunk = self._chunk, None
        return [begun] if begun else []

    def _has_room(self, chunk: Chunk, tokens: int, size_bytes: int) -> bool:
        return (
            len(chunk.sequences) < self._limits.sequences
            and self._tokens + tokens <= self._limits.tokens
            and self._size_bytes + size_bytes <= self._limits.size_bytes
        )


def limits_of(model: pb.GetModelResponse, *, hidden: bool, timeout_s: float, in_flight: int) -> Limits:
    """Chooses how large a model's requests may be.

    Args:
        model: what the server says of the model.
        hidden: whether the replies hold a vector a token.
        timeout_s: until the deadline of a request.
        in_flight: requests that the caller has on their way at once.
    """
    limits, rate = model.limits, model.execution.cost.service_tokens_per_s
    in_time_tokens = rate * timeout_s * _DEADLINE_SHARE / in_flight if rate else math.inf
    reply_tokens = _MOST_HIDDEN_BYTES / (_FLOAT_BYTES * max(1, model.width)) if hidden else math.inf
    return Limits(
        sequences=min(_MOST_SEQUENCES, limits.max_sequences),
        tokens=int(min(limits.max_tokens, in_time_tokens, reply_tokens)),
        size_bytes=limits.max_message_bytes,
        text_tokens=model.max_text_tokens,
    )


def cut(cutter: Cutter, sequences: Iterable[Any]) -> Iterator[Chunk]:
    """Yields the chunks of all sequences, in order."""
    for sequence in sequences:
        yield from cutter.add(sequence)
    yield from cutter.end()


def cut_as_read(cutter: Cutter, sequences: Iterable[Any]) -> Iterator[Chunk]:
    """Yields the chunks of all that a source gives, in order, and hurried ones where it is slow."""
    asked_s = time.monotonic()
    for sequence in sequences:
        yield from cutter.add(sequence, time.monotonic() - asked_s)
        asked_s = time.monotonic()
    yield from cutter.end()


def is_too_much(error: Exception) -> bool:
    """Tells whether a request was refused for all that it holds together, and fewer sequences may be taken.

    How many tokens a text has, only the server knows, and it may have been restarted with other limits.
    """
    if isinstance(error, InvalidInput):
        return error.sequence is None and error.limit is not None and error.field in (None, "texts")
    return isinstance(error, MessageTooLarge)


def halves(chunk: Chunk) -> list[Chunk]:
    """Splits a chunk of several sequences into two."""
    middle = chunk.first + len(chunk.sequences) // 2
    return [
        Chunk(
            chunk.form,
            part.start,
            chunk.sequences[part.start - chunk.first : part.stop - chunk.first],
            {index: error for index, error in chunk.failures.items() if index in part},
        )
        for part in (range(chunk.first, middle), range(middle, chunk.first + len(chunk.sequences)))
    ]
