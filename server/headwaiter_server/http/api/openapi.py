"""Describe the paths of the table in OpenAPI, and on a page for people. Pure functions."""

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any

import orjson

from headwaiter_server.http.api.errors import OPEN_INFERENCE_ERRORS, OPENAI_ERRORS, TEI_ERRORS
from headwaiter_server.http.api.open_inference import BINARY_MEDIA_TYPE
from headwaiter_server.http.api.routes import TABLE, Entry
from headwaiter_server.requests.fields import Field, Schema, object_schema

# The statuses of errors, and when they occur.
STATUSES = {
    400: "The request is wrong: the same request will fail again.",
    401: "The token is missing or wrong.",
    404: "The server has no such model.",
    408: "The body was not complete in time.",
    413: "The body is larger than any valid request.",
    415: "The body is compressed.",
    429: "The server is overloaded: try again after the time in Retry-After.",
    501: "The server does not offer this.",
    500: "The model failed on a sequence, or the server failed.",
    503: "The server is starting or draining, or a device failed: try again.",
    504: "The answer was not ready in time.",
}


def document() -> dict[str, Any]:
    """Return the description of all paths in OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for entry in TABLE:
        described = _entry(entry)
        for path in entry.paths:
            parameters = [_parameter(name) for name in _ABOUT_PARAMETERS if f"{{{name}}}" in path]
            paths[path] = {entry.verb.lower(): {**described, **({"parameters": parameters} if parameters else {})}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headwaiter", "version": version("headwaiter")},
        "paths": paths,
        "components": {
            "schemas": {each.name: each.schema for each in (OPENAI_ERRORS, TEI_ERRORS, OPEN_INFERENCE_ERRORS)},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


_ABOUT_PARAMETERS = {"model": "Name of the model.", "version": "Version of the model."}


def _parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": _ABOUT_PARAMETERS[name], "schema": schema}


def _entry(entry: Entry) -> dict[str, Any]:
    own_forms = list(dict.fromkeys(each.errors.name for each in entry.does))
    # Values of tensors may follow the JSON.
    binary: dict[str, Any] = {BINARY_MEDIA_TYPE: {}} if entry.does[0].rules == "tensors" else {}
    reply = _json(_any_of([each.reply for each in entry.does])) | binary
    # A path that the server does not know, for example with a control character in the model, has OpenAI's form.
    forms = {404: list(dict.fromkeys((*own_forms, OPENAI_ERRORS.name)))}
    errors = {
        str(status): {
            "description": words,
            "content": _json(
                _any_of([{"$ref": f"#/components/schemas/{name}"} for name in forms.get(status, own_forms)])
            ),
        }
        for status, words in STATUSES.items()
    }
    described: dict[str, Any] = {
        "summary": entry.does[0].about,
        "responses": {"200": {"description": "The reply.", "content": reply}, **errors},
    }
    bodies = [object_schema(each.fields) for each in entry.does if each.fields is not None]
    if bodies:
        described["requestBody"] = {"required": True, "content": _json(_any_of(bodies)) | binary}
    return described


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _any_of(schemas: Sequence[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


@cache
def written_document() -> bytes:
    """Return the description as JSON."""
    return orjson.dumps(document())


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #ccc;"
    "vertical-align:top}h2{font:600 1.1rem ui-monospace,monospace;margin-top:2.5rem}"
)


@cache
def page() -> bytes:
    """Return a page that lists the paths and their fields."""
    content = "".join(part for entry in TABLE for part in _section(entry))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Headwaiter: paths</title><style>{_STYLE}</style></head><body><h1>Paths</h1>"
        "<p>Every path that answers for a model may also follow <code>/models/NAME</code>, which names the model; in "
        "those of the Open Inference Protocol, <code>/versions/VERSION</code> may follow the model instead. "
        'The same in OpenAPI: <a href="openapi.json">openapi.json</a>.</p>'
        f"{content}</body></html>"
    ).encode()


def _section(entry: Entry) -> Iterator[str]:
    yield f"<h2>{entry.verb} {escape(entry.path)}</h2><p>{escape(entry.does[0].about)}</p>"
    for each in entry.does:
        if each.fields is not None:
            rows = "".join(_rows(each.fields))
            yield f"<table><tr><th>field</th><th>values</th><th>meaning</th></tr>{rows}</table>"


def _rows(fields: Sequence[Field], owner: str = "") -> Iterator[str]:
    names = {each.name for each in fields}
    for each in fields:
        # An object of options that may also stand beside it needs no rows of its own.
        repeated = bool(each.fields) and {inner.name for inner in each.fields} <= names
        about = "An object with the options above, as huggingface_hub sends them." if repeated else each.about
        values = _values(each.kind.schema) + (", required" if each.required else "")
        cells = (f"<code>{escape(owner + each.name)}</code>", escape(values), escape(about))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        if each.fields and not repeated:
            several = "[]" if each.kind.schema["type"] == "array" else ""
            yield from _rows(each.fields, f"{owner}{each.name}{several}.")


def _values(schema: Schema) -> str:
    """Return in words which values a field may have."""
    if "description" in schema:
        return str(schema["description"])
    if "enum" in schema:
        return ", ".join(each if isinstance(each, str) else orjson.dumps(each).decode() for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_values(schema['items'])}"
    kind = schema.get("type", "any value")
    return {"string": "text", "boolean": "true, false", "integer": "whole number"}.get(kind, str(kind))
