"""Read the sequences of a request, and tokenise its texts."""

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
    tokenizer: BundleTokenizer | None,
    limits: RequestLimits,
) -> ParsedInput:
    """Return the sequences of a request whose options are checked; only a model that takes texts has a tokenizer.

    Raises:
        InvalidInput: the request is wrong; or a sequence is wrong, and the request is not partial.
    """
    # An AttendRequest has the same inputs, but no options.
    options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
    failures = Failures(keep=options.partial)
    if not request.HasField("texts"):
        return read_rows(request, manifest, limits, failures)
    prompt = read_prompt(request.texts, manifest, limits)
    assert tokenizer is not None
    tokenize_options = TokenizeOptions(prompt.text, _TRUNCATIONS[options.truncation], options.output.offsets)
    tokenize = partial(tokenizer.tokenize, list(request.texts.values), tokenize_options, failures, limits.tokens)
    # Tokenising one short text takes less time than starting a thread. Several texts use the tokenizer's own threads.
    small = len(request.texts.values) == 1 and request.texts.ByteSize() <= _SMALL_TEXT_BYTES
    tokenized = tokenize() if small else await asyncio.to_thread(tokenize)
    parsed = read_tokenized([text.ids for text in tokenized], prompt, manifest, limits, failures)
    parsed.truncated = {
        index: text.original_tokens for index, text in enumerate(tokenized) if text.original_tokens > len(text.ids)
    }
    if tokenize_options.offsets:
        parsed.offsets = [text.offsets for text in tokenized if text.offsets is not None]
    return parsed
