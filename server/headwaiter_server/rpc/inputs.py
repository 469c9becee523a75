"""Reads the sequences of a request, whichever form they come in."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import Failures, InvalidInput
from headwaiter_server.models.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.rpc import requests

_SMALL_TEXT_BYTES = 1024
# An error travels in HTTP/2 headers of 8 KiB.
_QUOTED_CHARACTERS = 256


@dataclass(eq=False, slots=True)
class Inputs:
    """The sequences of a request.

    Attributes:
        sequences: token ids [n_i] or features [n_i, width] of each; of one that failed, anything.
        failures: what is wrong with those that failed.
        truncated: how many tokens the texts had that were cut, by index.
        offsets: [n_i, 2] where in its text each token stands; None unless asked for.
        skipped_tokens: how many tokens of each sequence, the first, pooling leaves out.
    """

    sequences: list[NDArray[np.generic]]
    failures: Failures
    truncated: Mapping[int, int] = field(default_factory=dict)
    offsets: list[NDArray[np.int64]] | None = None
    skipped_tokens: int = 0


async def read_inputs(
    request: pb.EncodeRequest | pb.AttendRequest,
    manifest: Manifest,
    text: BundleTokenizer | None,
    limits: requests.RequestLimits,
    *,
    truncation: Truncation = Truncation.ERROR,
    offsets: bool = False,
    keep_failures: bool = False,
) -> Inputs:
    """Return the sequences of a request, and what goes with them.

    Args:
        request: what holds them.
        manifest: of the model.
        text: its tokenizer, if it has one.
        limits: what one request may hold.
        truncation: what to do with a text that is too long.
        offsets: tell where in a text each token stands.
        keep_failures: go on where a sequence cannot be served.

    Raises:
        InvalidInput: what is wrong, and with which sequence.
    """
    failures = Failures(keep=keep_failures)
    match request.WhichOneof("input"):
        case "tokens":
            return Inputs(requests.read_tokens(request.tokens, manifest, limits, failures), failures)
        case "features":
            return Inputs(requests.read_features(request.features, manifest, limits, failures), failures)
        case "texts":
            prompt = _prompt_of(request.texts, manifest)
            form = TokenizeOptions(prompt.text, truncation, offsets)
            skipped_tokens = prompt.tokens if prompt.text and manifest.pooling_skips_prompt else 0
            return await _tokenize(request.texts, form, skipped_tokens, manifest, text, limits, failures)
        case _:
            raise InvalidInput("the request has no input: give it tokens, features or texts")


async def _tokenize(
    texts: pb.Texts,
    form: TokenizeOptions,
    skipped_tokens: int,
    manifest: Manifest,
    text: BundleTokenizer | None,
    limits: requests.RequestLimits,
    failures: Failures,
) -> Inputs:
    if text is None:
        raise InvalidInput("texts: the model has no tokenizer; send token ids or features", field="texts")
    _check_size(texts, limits)
    values = list(texts.values)
    encode = partial(text.tokenize, values, form, failures, limits.tokens)
    # A short text takes less time than a thread takes to hear of it; several wait for the tokenizer's own threads.
    small = len(values) == 1 and texts.ByteSize() <= _SMALL_TEXT_BYTES
    tokens = encode() if small else await asyncio.to_thread(encode)
    lengths = [len(each.ids) for each in tokens]
    requests.check_tokens(sum(lengths), limits)
    requests.check_lengths(lengths, "texts", manifest, failures)
    return Inputs(
        [each.ids for each in tokens],
        failures,
        {index: each.original_tokens for index, each in enumerate(tokens) if each.original_tokens > len(each.ids)},
        [each.offsets for each in tokens if each.offsets is not None] if form.offsets else None,
        skipped_tokens,
    )


def _prompt_of(texts: pb.Texts, manifest: Manifest) -> pb.Prompt:
    """Return the prompt that texts ask for, or else the model's default; an empty one where there is none."""
    name = texts.prompt or manifest.default_prompt
    known = {prompt.name: prompt for prompt in manifest.prompts}
    if name and name not in known:
        offered = shorten(", ".join(map(repr, known)) or "none", _QUOTED_CHARACTERS, placeholder=" …")
        raise InvalidInput(
            f"texts.prompt: the model has no prompt {name[:_QUOTED_CHARACTERS]!r}; it has {offered}",
            field="texts.prompt",
        )
    return known[name] if name else pb.Prompt()


def _check_size(texts: pb.Texts, limits: requests.RequestLimits) -> None:
    """Refuse texts that are beyond the limits by their mere size, before anyone spends time on their tokens."""
    requests.check_count(len(texts.values), limits)
    limit_bytes = limits.text_bytes
    if texts.ByteSize() > limit_bytes:
        raise InvalidInput(
            f"texts: {texts.ByteSize()} bytes in all, and the server takes {limit_bytes} in a request: split it",
            field="texts",
            limit=limit_bytes,
            actual=texts.ByteSize(),
        )
