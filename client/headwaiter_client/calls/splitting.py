"""Split sequences into chunks; each chunk becomes one request that the server accepts."""

import math
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from headwaiter_client.calls.input_kinds import InputKind, SequenceSize, input_kind_of
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, MessageTooLarge

# Large enough to fill the server's batches; small enough to report progress and to share the work among replicas.
MAX_REQUEST_SEQUENCES = 256
# Room in a message for everything except the sequences.
_OPTIONS_BYTES = 1024
# Hidden vectors make replies about a thousand times larger than their requests.
_MAX_HIDDEN_REPLY_BYTES = 8 << 20
_FLOAT_BYTES = 4
# The requests that one call has in flight may keep the server busy for this share of their timeout; the rest is for
# the requests of other callers.
_DEADLINE_SHARE = 0.25


@dataclass(frozen=True)
class ChunkLimits:
    """The limits of one request.

    Attributes:
        sequences: maximum number of sequences.
        tokens: maximum number of tokens of all sequences together.
        size_bytes: maximum size of the message.
        text_tokens: maximum number of tokens of one text after truncation, or of one image.
    """

    sequences: int
    tokens: int
    size_bytes: int
    text_tokens: int


# Far below a server's usual limits: a list within these limits is sent without asking the server for its limits.
SMALL_LIST = ChunkLimits(sequences=32, tokens=4096, size_bytes=1 << 13, text_tokens=4096)


@dataclass
class Chunk:
    """The sequences of one request.

    Attributes:
        kind: the kind of input.
        first: index of the first sequence in the caller's list.
        sequences: the converted sequences.
        failures: the error of each sequence that cannot be sent, by index in the caller's list; an empty sequence is
            sent in its place.
        max_size: an upper bound of the size of all sequences together; None if each sequence must be measured.
    """

    kind: InputKind
    first: int
    sequences: list[Any]
    failures: dict[int, HeadwaiterError] = field(default_factory=dict)
    max_size: SequenceSize | None = None


class SequenceConverter:
    """Checks the sequences of a call, in order, and brings them into the form in which they are sent.

    Args:
        kind: the kind of input; None takes the kind of the first sequence.
        partial: put an empty sequence in place of one that cannot be sent, instead of raising its error.
    """

    def __init__(self, kind: InputKind | None, *, partial: bool) -> None:
        self._kind = kind
        self._partial = partial
        self._count = 0

    def convert_all(self, sequences: Iterable[Any]) -> Iterator[Chunk]:
        """Yield the sequences in chunks; see `convert`."""
        rest = iter(sequences)
        while some := list(islice(rest, MAX_REQUEST_SEQUENCES)):
            yield self.convert(some)

    def convert(self, sequences: list[Any]) -> Chunk:
        """Return the next sequences as a chunk, which may be too large for a request and may hold the list itself.

        Raises:
            InvalidInput: a sequence cannot be sent.
        """
        kind = self._kind = self._kind or input_kind_of(sequences[0])
        first = self._count
        self._count += len(sequences)
        if size := kind.size_of_all(sequences):
            return Chunk(kind, first, sequences, max_size=size)
        chunk = Chunk(kind, first, [])
        for index, sequence in enumerate(sequences, first):
            try:
                converted = kind.convert(index, sequence)
            except InvalidInput as error:
                converted = kind.empty()
                if converted is None or not self._partial:
                    raise
                chunk.failures[index] = error
            chunk.sequences.append(converted)
        return chunk


class ChunkBuilder:
    """Groups converted sequences into chunks within limits; a sequence above the limits gets a chunk of its own."""

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self._chunk: Chunk | None = None
        self._tokens = 0
        self._size_bytes = 0

    @property
    def holds_sequences(self) -> bool:
        """Whether there is a chunk that is not full yet."""
        return self._chunk is not None

    def add(self, converted: Chunk) -> list[Chunk]:
        """Add the sequences that follow those of the last call, and return the chunks that are full."""
        full = []
        for index, sequence in enumerate(converted.sequences, converted.first):
            tokens, size_bytes = converted.kind.measure(sequence, self._limits.text_tokens)
            if self._chunk and not (
                self._tokens + tokens <= self._limits.tokens
                and self._size_bytes + size_bytes <= self._limits.size_bytes
            ):
                full += self.finish()
            if self._chunk is None:
                self._chunk = Chunk(converted.kind, index, [])
                self._tokens, self._size_bytes = 0, _OPTIONS_BYTES
            self._chunk.sequences.append(sequence)
            self._tokens += tokens
            self._size_bytes += size_bytes
            if index in converted.failures:
                self._chunk.failures[index] = converted.failures[index]
            if len(self._chunk.sequences) >= self._limits.sequences:
                full += self.finish()
        return full

    def finish(self) -> list[Chunk]:
        """Return the chunk that is not full yet, if there is one."""
        unfinished, self._chunk = self._chunk, None
        return [unfinished] if unfinished else []


def fits(chunk: Chunk, limits: ChunkLimits) -> bool:
    """Return whether a chunk is within limits, as far as the upper bound of its size tells."""
    return (
        chunk.max_size is not None
        and len(chunk.sequences) <= limits.sequences
        and chunk.max_size.tokens <= limits.tokens
        and chunk.max_size.size_bytes + _OPTIONS_BYTES <= limits.size_bytes
    )


def measured_size(chunk: Chunk, max_text_tokens: int) -> SequenceSize:
    """Return an upper bound of the size of all sequences of a chunk, each of which is measured."""
    sizes = [chunk.kind.measure(sequence, max_text_tokens) for sequence in chunk.sequences]
    return SequenceSize(sum(size.tokens for size in sizes), sum(size.size_bytes for size in sizes))


def is_small_list(chunk: Chunk) -> bool:
    """Return whether a list is within `SMALL_LIST`."""
    if len(chunk.sequences) > SMALL_LIST.sequences or fits(chunk, SMALL_LIST):
        return len(chunk.sequences) <= SMALL_LIST.sequences
    return fits(replace(chunk, max_size=measured_size(chunk, SMALL_LIST.text_tokens)), SMALL_LIST)


def regroup(parts: Iterable[Chunk], limits: ChunkLimits) -> Iterator[Chunk]:
    """Yield the sequences of all parts in chunks within limits."""
    builder = ChunkBuilder(limits)
    for part in parts:
        if not builder.holds_sequences and fits(part, limits):
            yield part
        else:
            yield from builder.add(part)
    yield from builder.finish()


def chunk_limits(model: pb.GetModelResponse, *, hidden: bool, timeout_s: float, max_in_flight: int) -> ChunkLimits:
    """Choose the limits of requests to a model; `hidden` says whether the replies hold one vector per token."""
    limits, tokens_per_s = model.limits, model.execution.cost.service_tokens_per_s
    deadline_tokens = tokens_per_s * timeout_s * _DEADLINE_SHARE / max_in_flight if tokens_per_s else math.inf
    reply_tokens = (
        _MAX_HIDDEN_REPLY_BYTES / (_FLOAT_BYTES * max(1, model.hidden_width or model.width)) if hidden else math.inf
    )
    # The server prepares images, and then accepts as many bytes as of features.
    image_tokens = limits.max_message_bytes / (_FLOAT_BYTES * model.feature_width) if model.takes_images else math.inf
    return ChunkLimits(
        sequences=min(MAX_REQUEST_SEQUENCES, limits.max_sequences),
        tokens=int(min(limits.max_tokens, deadline_tokens, reply_tokens, image_tokens)),
        size_bytes=limits.max_message_bytes,
        text_tokens=model.max_text_tokens or model.max_tokens,
    )


def is_request_too_large(error: Exception) -> bool:
    """Return whether the server refused a request for its total size; fewer sequences per request may then succeed.

    Such a refusal is possible although chunks stay within the limits: only the server knows how many tokens a text has,
    and the server may have been restarted with other limits.
    """
    if isinstance(error, InvalidInput):
        return error.sequence is None and error.limit is not None and error.field in (None, "texts", "pairs", "images")
    return isinstance(error, MessageTooLarge)


def size_error(size_bytes: int, model: pb.GetModelResponse, request_id: str) -> MessageTooLarge | None:
    """Return the error of a request whose message is larger than the server accepts; None if the size is no problem.

    gRPC refuses such a message without error details. The refusal of a proxy that limits calls looks the same, so the
    size of the message is compared with the server's limit.
    """
    limit = model.limits.max_message_bytes
    if not limit or size_bytes <= limit:
        return None
    return MessageTooLarge(
        f"the request has {size_bytes} bytes; the server accepts at most {limit}: send less in one request",
        limit=limit,
        actual=size_bytes,
        request_id=request_id,
    )


def split_in_half(chunk: Chunk) -> list[Chunk]:
    """Split a chunk of two or more sequences into two."""
    middle = chunk.first + len(chunk.sequences) // 2
    return [
        Chunk(
            chunk.kind,
            half.start,
            chunk.sequences[half.start - chunk.first : half.stop - chunk.first],
            {index: error for index, error in chunk.failures.items() if index in half},
        )
        for half in (range(chunk.first, middle), range(middle, chunk.first + len(chunk.sequences)))
    ]


def sequence_too_large(index: int, error: HeadwaiterError) -> HeadwaiterError:
    """Return the error of a sequence that was refused for its size in a request of its own."""
    located_error = copy(error)
    located_error.sequence = index
    located_error.args = (f"is too large for a request by itself ({error}): shorten it or split it",)
    return located_error
