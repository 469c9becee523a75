"""The forms of Text Embeddings Inference: JSON to an EncodeRequest, and its reply to JSON. Pure functions."""

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, Overloaded
from headwaiter_server.http.json_fields import JsonFields, error_in_json, fill_input
from headwaiter_server.http.openai import float_rows, json_rows

_FIELDS = ("inputs", "truncate", "truncation_direction", "normalize", "prompt_name", "dimensions")
_DIRECTIONS = {
    "Right": pb.TRUNCATION_RIGHT,
    "right": pb.TRUNCATION_RIGHT,
    "Left": pb.TRUNCATION_LEFT,
    "left": pb.TRUNCATION_LEFT,
}


def read_embed_request(raw: bytes) -> pb.EncodeRequest:
    """Read the body of POST /embed; vectors have unit length and texts are not truncated unless the body says so.

    Raises:
        InvalidInput: the body is wrong.
    """
    fields = JsonFields(raw, _FIELDS)
    request = pb.EncodeRequest()
    fill_input(request, fields.value("inputs"), "inputs")
    if prompt := fields.text("prompt_name"):
        request.texts.prompt = prompt
    request.output.pooled = True
    request.output.normalize = fields.boolean("normalize", default=True)
    request.output.dimensions = fields.whole_number("dimensions")
    request.truncation = read_truncation(fields)
    return request


def read_truncation(fields: JsonFields) -> pb.Truncation:
    """Return what happens to texts that are too long: they are refused unless the body says otherwise."""
    direction = fields.choice("truncation_direction", _DIRECTIONS)
    return direction if fields.boolean("truncate", default=False) else pb.TRUNCATION_ERROR


def embed_reply(reply: pb.EncodeResponse) -> bytes:
    """Write the reply to POST /embed: a list of vectors."""
    return orjson.dumps(list(json_rows(float_rows(reply.pooled))))


def error_body(error: HeadwaiterError, http_status: int) -> bytes:
    """Write the body of an error."""
    kind = "Overloaded" if isinstance(error, Overloaded) else "Validation" if http_status < 500 else "Backend"
    message, _ = error_in_json(error)
    return orjson.dumps({"error": message, "error_type": kind})
