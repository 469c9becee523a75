"""The forms of OpenAI's embeddings interface: JSON to an EncodeRequest, and its reply to JSON. Pure functions."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, ModelNotFound, Overloaded, SequenceTooLong, Unauthenticated
from headwaiter_server.http.json_fields import JsonFields, error_in_json, fill_input

# The fields of OpenAI's interface, then those of Headwaiter's own.
_FIELDS = ("input", "model", "dimensions", "encoding_format", "user", "prompt", "truncation", "priority", "timeout_s")
_USES_BASE64 = {"float": False, "base64": True}
TRUNCATIONS = {"error": pb.TRUNCATION_ERROR, "left": pb.TRUNCATION_LEFT, "right": pb.TRUNCATION_RIGHT}
_PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}
# The codes of OpenAI's errors; other errors have the name of their reason.
_ERROR_CODES: dict[type[HeadwaiterError], str] = {
    ModelNotFound: "model_not_found",
    SequenceTooLong: "context_length_exceeded",
    Overloaded: "rate_limit_exceeded",
    Unauthenticated: "invalid_api_key",
}


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A request for embeddings.

    Attributes:
        encode: the request in the form of headwaiter.v1.
        base64: whether the vectors of the reply are written in base64.
    """

    encode: pb.EncodeRequest
    base64: bool


def read_embeddings_request(raw: bytes) -> EmbeddingsRequest:
    """Read the body of POST /v1/embeddings.

    Raises:
        InvalidInput: the body is wrong.
    """
    fields = JsonFields(raw, _FIELDS)
    request = pb.EncodeRequest(model=fields.text("model"), timeout_s=fields.seconds("timeout_s"))
    fill_input(request, fields.value("input"), "input")
    if prompt := fields.text("prompt"):
        request.texts.prompt = prompt
    request.output.pooled = True
    request.output.dimensions = fields.whole_number("dimensions")
    request.truncation = fields.choice("truncation", TRUNCATIONS)
    request.priority = fields.choice("priority", _PRIORITIES)
    fields.text("user")  # The name of the caller's own user; it has no effect.
    return EmbeddingsRequest(request, fields.choice("encoding_format", _USES_BASE64))


def embeddings_reply(reply: pb.EncodeResponse, *, base64: bool) -> bytes:
    """Write the reply to POST /v1/embeddings: float32 as numbers, or as little-endian bytes in base64."""
    vectors = float_rows(reply.pooled)
    tokens = sum(reply.lengths)
    rows: Iterable[object] = (
        (b64encode(vector.tobytes()).decode() for vector in vectors) if base64 else json_rows(vectors)
    )
    return orjson.dumps(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "model": reply.model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def float_rows(tensor: pb.Tensor) -> NDArray[np.float32]:
    """Return the rows of a float32 tensor of a reply, [n, width]."""
    return np.frombuffer(tensor.data, "<f4").reshape(*tensor.shape)


def json_rows(vectors: NDArray[np.float32]) -> Iterator[orjson.Fragment]:
    """Yield each vector as a JSON list.

    orjson holds Python's global lock while it writes, so thousands of vectors at once would stop all other threads.
    """
    return (orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)) for vector in vectors)


def models_reply(longest_tokens: Mapping[str, int], created_s: int) -> bytes:
    """Write the reply to GET /v1/models.

    Args:
        longest_tokens: for the name of each model, most tokens of a text, or of a sequence if it takes no texts.
        created_s: the server's start, in seconds since 1970.
    """
    same = {"object": "model", "created": created_s, "owned_by": "headwaiter"}
    models = [{"id": name, **same, "max_model_len": tokens} for name, tokens in longest_tokens.items()]
    return orjson.dumps({"object": "list", "data": models})


def error_body(error: HeadwaiterError, http_status: int) -> bytes:
    """Write the body of an error: what is wrong, the field, and a code for programs."""
    kind = "invalid_request_error" if http_status < 500 else "server_error"
    code = _ERROR_CODES.get(type(error), pb.ErrorReason.Name(error.reason).lower())
    details = {"sequence": error.sequence, "limit": error.limit, "actual": error.actual}
    known = {name: value for name, value in details.items() if value is not None}
    message, field = error_in_json(error)
    return orjson.dumps({"error": {"message": message, "type": kind, "param": field, "code": code, **known}})
