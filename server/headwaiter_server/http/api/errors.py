"""The forms of errors in other servers' interfaces. Pure functions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, ModelNotFound, Overloaded, SequenceTooLong, Unauthenticated
from headwaiter_server.requests.fields import Field, Schema, name_field

# The codes of OpenAI's errors; other errors have the name of their reason.
_OPENAI_CODES: dict[type[HeadwaiterError], str] = {
    ModelNotFound: "model_not_found",
    SequenceTooLong: "context_length_exceeded",
    Overloaded: "rate_limit_exceeded",
    Unauthenticated: "invalid_api_key",
}


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """The form of errors in one interface.

    Attributes:
        name: the name of the form.
        write: returns the body of an error, given its HTTP status, the fields that the body may have, and those that
            filled a place.
        schema: the body in JSON Schema.
    """

    name: str
    write: Callable[[HeadwaiterError, int, Iterable[Field], Mapping[str, str]], bytes]
    schema: Schema


def _openai_error(error: HeadwaiterError, status: int, fields: Iterable[Field], names: Mapping[str, str]) -> bytes:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    code = _OPENAI_CODES.get(type(error), pb.ErrorReason.Name(error.reason).lower())
    details = {"sequence": error.sequence, "limit": error.limit, "actual": error.actual}
    known = {name: value for name, value in details.items() if value is not None}
    message, field = name_field(error, fields, names)
    return orjson.dumps({"error": {"message": message, "type": kind, "param": field, "code": code, **known}})


def _tei_error(error: HeadwaiterError, status: int, fields: Iterable[Field], names: Mapping[str, str]) -> bytes:
    kind = "Overloaded" if isinstance(error, Overloaded) else "Validation" if status < 500 else "Backend"
    message, _ = name_field(error, fields, names)
    return orjson.dumps({"error": message, "error_type": kind})


def _open_inference_error(error: HeadwaiterError, *_: Any) -> bytes:
    return orjson.dumps({"error": str(error)})


_NUMBER_OR_NULL: Schema = {"type": ["integer", "null"]}
OPENAI_ERRORS = ErrorForm(
    "OpenAIError",
    _openai_error,
    {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string"},
                    "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                    "param": {"type": ["string", "null"], "description": "The wrong field."},
                    "code": {"type": "string"},
                    "sequence": {**_NUMBER_OR_NULL, "description": "Index of the wrong sequence."},
                    "limit": {**_NUMBER_OR_NULL, "description": "The limit that was exceeded."},
                    "actual": {**_NUMBER_OR_NULL, "description": "The value that exceeded the limit."},
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
)
TEI_ERRORS = ErrorForm(
    "TEIError",
    _tei_error,
    {
        "type": "object",
        "properties": {
            "error": {"type": "string"},
            "error_type": {"enum": ["Overloaded", "Validation", "Backend"]},
        },
        "required": ["error", "error_type"],
    },
)
OPEN_INFERENCE_ERRORS = ErrorForm(
    "OpenInferenceError",
    _open_inference_error,
    {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
)
