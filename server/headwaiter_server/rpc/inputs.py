"""Reads the sequences of a request, whichever form they come in."""

import asyncio
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import InvalidInput
from headwaiter_server.rpc import requests
from headwaiter_server.text import TextEncoder

_SMALL_TEXT_BYTES = 1024


async def read_sequences(
    request: pb.EncodeRequest | pb.AttendRequest,
    manifest: Manifest,
    text: TextEncoder | None,
    limits: requests.RequestLimits,
) -> list[NDArray[np.generic]]:
    """Return the token ids [n_i] or features [n_i, width] of each sequence.

    Raises:
        InvalidInput: what is wrong, and with which sequence.
    """
    match request.WhichOneof("input"):
        case "tokens":
            return requests.read_tokens(request.tokens, manifest, limits)
        case "features":
            return requests.read_features(request.features, manifest, limits)
        case "texts":
            return await _tokenize(request.texts, manifest, text, limits)
        case _:
            raise InvalidInput("the request has no input: give it tokens, features or texts")


async def _tokenize(
    texts: pb.Texts, manifest: Manifest, text: TextEncoder | None, limits: requests.RequestLimits
) -> list[NDArray[np.generic]]:
    if text is None:
        raise InvalidInput("texts: the model has no tokenizer; send token ids or features", field="texts")
    requests.check_texts(texts, limits)
    values = list(texts.values)
    encode = partial(text.encode, values, limits.tokens)
    # A short text takes less time than a thread takes to hear of it; several wait for the tokenizer's own threads.
    small = len(values) == 1 and texts.ByteSize() <= _SMALL_TEXT_BYTES
    sequences = encode() if small else await asyncio.to_thread(encode)
    requests.check_lengths(np.array([len(sequence) for sequence in sequences]), "texts", manifest)
    requests.check_tokens(sum(map(len, sequences)), limits)
    return list(sequences)
