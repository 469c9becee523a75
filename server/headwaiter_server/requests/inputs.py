"""Read the sequences of a request, tokenise its texts, and decode its images."""

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.images import check_images
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.pairs import read_pairs
from headwaiter_proto.rules.sequences import ParsedInput, read_prompt, read_rows, read_tokenized
from headwaiter_proto.rules.token_types import with_types
from headwaiter_server.models.image_files import read_images
from headwaiter_server.models.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import PriorityThreads
from headwaiter_server.scheduling.fair_start import Priority

_SMALL_TEXT_BYTES = 1024
_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
_TRUNCATIONS = {
    pb.TRUNCATION_UNSPECIFIED: Truncation.ERROR,
    pb.TRUNCATION_ERROR: Truncation.ERROR,
    pb.TRUNCATION_LEFT: Truncation.LEFT,
    pb.TRUNCATION_RIGHT: Truncation.RIGHT,
}

# Raises an error if the queue has no room for a number of tokens.
CheckRoom = Callable[[int], Awaitable[None]]


class InputThreads(NamedTuple):
    """The threads that read inputs: images have threads of their own, because reading one can take seconds."""

    tokenizing: PriorityThreads
    decoding: PriorityThreads


def priority_of(request: pb.EncodeRequest) -> Priority:
    """Return the priority of a request; check the request's options first."""
    return _PRIORITIES[request.priority]


async def read_input(
    request: pb.EncodeRequest | pb.AttendRequest,
    manifest: Manifest,
    tokenizer: BundleTokenizer | None,
    limits: RequestLimits,
    threads: InputThreads,
    check_room: CheckRoom,
) -> ParsedInput:
    """Return the sequences of a request.

    Args:
        request: the request; its options have been checked.
        manifest: the manifest of the model.
        tokenizer: the model's tokenizer; None if the model takes no texts.
        limits: the limits of one request.
        threads: the threads for images, and for texts except a single short one.
        check_room: called with the smallest possible number of tokens before a thread reads texts or images.

    Raises:
        InvalidInput: the request is wrong; or a sequence is wrong, and the request is not partial.
        Overloaded: the queue has no room for the request, or too many bytes of texts or images wait for a thread.
    """
    # An AttendRequest has the same inputs, except pairs, but no options.
    options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
    failures = Failures(keep=options.partial)
    kind = request.WhichOneof("input")
    if kind == "images":
        tokens = check_images(options.images, manifest, limits)
        await check_room(1 if options.partial else tokens)
        return ParsedInput(await _decode(options, manifest, threads.decoding, failures), failures)
    if kind not in ("texts", "pairs"):
        return read_rows(request, manifest, limits, failures)
    prompt, pairs = pb.Prompt(), []
    if kind == "texts":
        prompt = read_prompt(request.texts, manifest, limits)
    else:
        pairs = read_pairs(options.pairs, manifest, limits)
    assert tokenizer is not None
    tokenize_options = TokenizeOptions(
        prompt, _TRUNCATIONS[options.truncation], options.output.offsets, options.pairs.pair_truncation
    )
    arguments = tokenize_options, failures, limits.tokens
    if kind == "texts":
        tokenize = partial(tokenizer.tokenize, list(request.texts.values), *arguments)
    else:
        tokenize = partial(tokenizer.tokenize_pairs, pairs, *arguments)
    # Tokenising one short text takes less time than starting a thread. Several texts use the tokenizer's own threads.
    count = len(pairs) or len(request.texts.values)
    size_bytes = options.pairs.ByteSize() or request.texts.ByteSize()
    if count == 1 and size_bytes <= _SMALL_TEXT_BYTES:
        tokenized = tokenize()
    else:
        # Each text has at least one token; only in a partial request may texts fail and have none.
        await check_room(1 if options.partial else count)
        tokenized = await threads.tokenizing.run(tokenize, priority_of(options), size_bytes)
    sequences = [with_types(text.ids, text.types, manifest) for text in tokenized]
    parsed = read_tokenized(sequences, prompt, manifest, limits, failures, kind)
    parsed.truncated = {
        index: text.original_tokens for index, text in enumerate(tokenized) if text.original_tokens > len(text.ids)
    }
    if tokenize_options.offsets:
        parsed.offsets = [text.offsets for text in tokenized if text.offsets is not None]
    return parsed


async def _decode(
    request: pb.EncodeRequest, manifest: Manifest, threads: PriorityThreads, failures: Failures
) -> list[NDArray[np.generic]]:
    """Return the rows of each image in a thread, which stops after the present image if the request is cancelled."""
    stopped = threading.Event()
    decode = partial(read_images, list(request.images.values), manifest, failures, stopped)
    try:
        return await threads.run(decode, priority_of(request), request.images.ByteSize())
    finally:
        stopped.set()
