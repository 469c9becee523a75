"""Reads bodies and writes replies as the paths of the table do."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.http.api.operations import Asked, Operation, read_question
from headwaiter_server.http.api.routes import TABLE


def operations(path: str) -> list[Operation]:
    """Return the operations of a path."""
    (entry,) = (each for each in TABLE if each.path == path)
    return [each for each in entry.does if isinstance(each, Operation)]


def ask(path: str, body: Any, model: str = "") -> Asked:
    """Return what a body asks of a path."""
    return read_question(operations(path), body if isinstance(body, bytes) else json.dumps(body).encode(), model)


def adapt(asked: Asked, **manifest: Any) -> pb.EncodeRequest:
    """Return the request once the model is known."""
    asked.operation.adapt(asked.question, Manifest(**manifest))
    return asked.question.encode


def posts() -> Iterator[str]:
    """Yield the paths with operations."""
    return (each.path for each in TABLE if operations(each.path))


def answer(asked: Asked, values: Any, logits: Any = None, **fields: Any) -> Any:
    """Return the JSON of the reply to a question, which fits its description.

    The values are vectors, rows or scores. Without logits, the scores are the logits, too.
    """
    tensor = _tensor(values)
    shared = {"request_id": "r", "model": pb.ModelRef(name="m"), "lengths": [3] * len(values), **fields}
    output = asked.question.encode.output
    if output.scores:
        reply: Any = pb.ClassifyResponse(scores=tensor, **shared)
        if output.logits:
            reply.logits.CopyFrom(_tensor(values if logits is None else logits))
    else:
        reply = pb.EncodeResponse(**shared)
        (reply.hidden if output.hidden else reply.pooled).CopyFrom(tensor)
    content = json.loads(asked.operation.write(asked.question, reply))
    Draft202012Validator(asked.operation.reply).validate(content)
    return content


def _tensor(values: Any) -> pb.Tensor:
    array = np.array(values, "<f4")
    return pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=array.shape, data=array.tobytes())
