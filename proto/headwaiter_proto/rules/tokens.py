"""The rules of Tokenize, which the server and the client's FakeEncoder share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.requests import check_offsets, check_options
from headwaiter_proto.rules.responses import add_truncated_and_offsets
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_proto.rules.token_types import without_types


def read_tokenize_request(request: pb.TokenizeRequest) -> pb.EncodeRequest:
    """Return a request to Tokenize as the request to Encode whose texts have the same tokens."""
    encode = pb.EncodeRequest(
        model=request.model,
        model_version=request.model_version,
        request_id=request.request_id,
        truncation=request.truncation,
        output=pb.OutputOptions(offsets=request.offsets),
    )
    if kind := request.WhichOneof("input"):
        getattr(encode, kind).CopyFrom(getattr(request, kind))
    return encode


def check_tokenize_request(request: pb.EncodeRequest, manifest: Manifest) -> None:
    """Check what `read_tokenize_request` returns, except its texts.

    Raises:
        InvalidInput: the request has no input, or an option is wrong, or does not fit the model or the input.
    """
    if not request.WhichOneof("input"):
        raise InvalidInput("the request has no input: send texts or pairs")
    check_options(request)
    check_offsets(request, manifest, "offsets")


def tokenize_response(
    parsed: ParsedInput, strings: Sequence[str], model: pb.ModelRef, request_id: str
) -> pb.TokenizeResponse:
    """Return the reply to a request to Tokenize.

    Args:
        parsed: the tokens of the texts or pairs.
        strings: the tokens as the vocabulary writes them; empty if they are not requested.
        model: the model that the tokenizer belongs to.
        request_id: the id of the request.
    """
    sequences = parsed.sequences
    ids = np.concatenate([without_types(each) for each in sequences])
    tokens = pb.TokenSequences(
        dtype=pb.DATA_TYPE_INT32, data=ids.astype("<i4").tobytes(), lengths=[len(each) for each in sequences]
    )
    if sequences[0].ndim == 2:
        types: NDArray[np.generic] = np.concatenate([each[:, 1] for each in sequences])
        tokens.types = types.astype(np.uint8).tobytes()
    reply = pb.TokenizeResponse(
        request_id=request_id, model=model, tokens=tokens, strings=strings, max_tokens=parsed.max_tokens
    )
    add_truncated_and_offsets(reply, parsed.truncated, parsed.offsets or ())
    reply.special = b"".join(each.tobytes() for each in parsed.special)
    return reply
