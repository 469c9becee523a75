"""Reads the sequences of a request, and tokenises its texts."""

import asyncio
from functools import partial

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.inputs import ParsedInput, read_prompt, read_rows, read_tokenized
from headwaiter_proto.rules.requests import RequestLimits
from headwaiter_server.models.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.scheduling.due_times import Priority

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


def priority_of(request: pb.EncodeRequest) -> Priority:
    """Return the priority of a request whose options are checked."""
    return _PRIORITIES[request.priority]


async def read_input(
    request: pb.EncodeRequest | pb.AttendRequest,
    manifest: Manifest,
    text: BundleTokenizer | None,
    limits: RequestLimits,
) -> ParsedInput:
    """Return the sequences of a request whose options are checked.

    Args:
        request: the request.
        manifest: the model's.
        text: the model's tokenizer, if it has one.
        limits: the most that one request may hold.

    Raises:
        InvalidInput: the request is wrong, or one of its sequences, unless the request is partial.
    """
    # An AttendRequest has the same inputs, but not these options.
    options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
    failures = Failures(keep=options.partial)
    if not request.HasField("texts"):
        return read_rows(request, manifest, limits, failures)
    prompt = read_prompt(request.texts, manifest, limits)
    assert text is not None
    tokenize_options = TokenizeOptions(prompt.text, _TRUNCATIONS[options.truncation], options.output.offsets)
    tokenize = partial(text.tokenize, list(request.texts.values), tokenize_options, failures, limits.tokens)
    # Starting a thread takes longer than tokenising one short text. Several texts use the tokenizer's own threads.
    small = len(request.texts.values) == 1 and request.texts.ByteSize() <= _SMALL_TEXT_BYTES
    tokens = tokenize() if small else await asyncio.to_thread(tokenize)
    parsed = read_tokenized([each.ids for each in tokens], prompt, manifest, limits, failures)
    parsed.truncated = {
        index: each.original_tokens for index, each in enumerate(tokens) if each.original_tokens > len(each.ids)
    }
    if tokenize_options.offsets:
        parsed.offsets = [each.offsets for each in tokens if each.offsets is not None]
    return parsed
