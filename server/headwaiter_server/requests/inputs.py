"""Read the sequences of a request, tokenise its texts, and decode its images."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.images import check_images
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.pairs import Pair, read_pairs
from headwaiter_proto.rules.sequences import ParsedInput, read_prompt, read_rows, read_tokenized
from headwaiter_proto.rules.token_types import with_types
from headwaiter_server.inputs.image_files import read_images
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.requests.shares import InputLimit
from headwaiter_server.requests.threads import PriorityThreads, Steps, finish
from headwaiter_server.scheduling.fair_start import Priority

_SMALL_TEXT_BYTES = 1024
_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    **{pb.Priority.Value(f"PRIORITY_{each.name}"): each for each in Priority},
}
_TRUNCATIONS = {
    pb.TRUNCATION_ERROR: Truncation.ERROR,
    pb.TRUNCATION_LEFT: Truncation.LEFT,
    pb.TRUNCATION_RIGHT: Truncation.RIGHT,
}

# Raises an error if the queue has no room for a number of tokens.
CheckRoom = Callable[[int], Awaitable[None]]


class InputReaders(NamedTuple):
    """The threads that read inputs: images have threads of their own, because reading one can take a second.

    Attributes:
        tokenizing: threads that read texts.
        decoding: threads that read images.
        texts: limits the texts that are being read, in bytes.
        images: limits the images that are being read, in bytes.
    """

    tokenizing: PriorityThreads
    decoding: PriorityThreads
    texts: InputLimit
    images: InputLimit


def priority_of(request: pb.EncodeRequest) -> Priority:
    """Return the priority of a request; check the request's options first."""
    return _PRIORITIES[request.priority]


async def read_input(
    request: pb.EncodeRequest | pb.AttendRequest,
    failures: Failures,
    manifest: Manifest,
    tokenizer: BundleTokenizer | None,
    limits: RequestLimits,
    readers: InputReaders,
    holder: str,
    check_room: CheckRoom,
    default_truncation: Truncation = Truncation.ERROR,
) -> ParsedInput:
    """Return the sequences of a request.

    Args:
        request: the request; its options have been checked.
        failures: the sequences of the request that have failed already; keeps the errors of others.
        manifest: the manifest of the model.
        tokenizer: the model's tokenizer; None if the model takes no texts.
        limits: the limits of one request.
        readers: read images, and texts except a single short one.
        holder: the tenant or the connection of the call; holders share the readers.
        check_room: called with the smallest possible number of tokens before a thread reads texts or images.
        default_truncation: how to treat texts that are too long if the request does not say it; with NONE, token ids
            may be too many, too.

    Raises:
        InvalidInput: the request is wrong; or a sequence is wrong, and `failures` does not keep errors.
        Overloaded: the queue has no room for the request, or too many bytes of texts or images are being read.
    """
    # An AttendRequest has the same inputs, but no options.
    options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
    kind = request.WhichOneof("input")
    truncation = _TRUNCATIONS.get(options.truncation, default_truncation)
    any_length = truncation is Truncation.NONE
    if kind == "images":
        tokens = check_images(request.images, manifest, limits)
        await check_room(1 if options.partial else tokens)
        with readers.images.held(holder, request.images.ByteSize()):
            reading: Steps[list[NDArray[np.generic]]] = read_images(list(request.images.values), manifest, failures)
            rows = await readers.decoding.run_steps(reading, priority_of(options), holder)
        return ParsedInput(rows, failures)
    if kind not in ("texts", "pairs"):
        return read_rows(request, manifest, limits, failures, any_length=any_length)
    prompt, pairs = pb.Prompt(), []
    if kind == "texts":
        prompt = read_prompt(request.texts, manifest, limits)
    else:
        pairs = read_pairs(request.pairs, manifest, limits)
    assert tokenizer is not None
    tokenize_options = TokenizeOptions(prompt, truncation, options.output.offsets, request.pairs.pair_truncation)
    inputs: Sequence[str | Pair] = request.texts.values if kind == "texts" else pairs
    tokenize = partial(tokenizer.tokenize, inputs, tokenize_options, failures, limits.tokens)
    # Tokenising one short text takes less time than starting a thread. Several texts use the tokenizer's own threads.
    count = len(inputs)
    size_bytes = request.pairs.ByteSize() or request.texts.ByteSize()
    if count == 1 and size_bytes <= _SMALL_TEXT_BYTES:
        tokenized = finish(tokenize())
    else:
        # Each text has at least one token; only in a partial request may texts fail and have none.
        await check_room(1 if options.partial else count)
        with readers.texts.held(holder, size_bytes):
            tokenized = await readers.tokenizing.run_steps(tokenize(), priority_of(options), holder)
    sequences = [with_types(text.ids, text.types, manifest) for text in tokenized]
    parsed = read_tokenized(sequences, prompt, manifest, limits, failures, kind, any_length=any_length)
    parsed.truncated = {
        index: text.original_tokens for index, text in enumerate(tokenized) if text.original_tokens > len(text.ids)
    }
    if tokenize_options.offsets:
        parsed.offsets = [text.offsets for text in tokenized if text.offsets is not None]
        parsed.special = [text.special for text in tokenized if text.special is not None]
    return parsed
