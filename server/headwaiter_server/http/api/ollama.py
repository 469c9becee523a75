"""The paths of Ollama's interface that concern embeddings."""

from datetime import UTC, datetime

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.tasks import VECTORS
from headwaiter_server.http.api.errors import TEI_ERRORS
from headwaiter_server.http.api.operations import (
    COUNT,
    STRING,
    VECTOR,
    Description,
    Operation,
    ServerFacts,
    array,
    float_rows,
    json_rows,
    record,
)
from headwaiter_server.http.api.sequences import ONE_TEXT, ONE_TEXT_OR_SEVERAL
from headwaiter_server.http.api.shared_fields import CALL, TRUNCATED_OR_NOT
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.fields import ANYTHING, Field, Question, ignored, one_of
from headwaiter_server.requests.options import DIMENSIONS


def _write_embed(_: Question, reply: pb.EncodeResponse) -> bytes:
    rows = list(json_rows(float_rows(reply.pooled)))
    return orjson.dumps({"model": reply.model.name, "embeddings": rows, "prompt_eval_count": sum(reply.lengths)})


def _write_one_embedding(_: Question, reply: pb.EncodeResponse) -> bytes:
    (row,) = json_rows(float_rows(reply.pooled))
    return orjson.dumps({"embedding": row})


def _truncate(question: Question) -> None:
    """Let a text that is too long lose tokens at its end."""
    question.encode.truncation = pb.TRUNCATION_RIGHT


def _write_tags(facts: ServerFacts, _: ModelFacts | None) -> bytes:
    started = datetime.fromtimestamp(facts.started_s, UTC).isoformat()
    models = [
        {"name": each.name, "model": each.name, "modified_at": started, "digest": each.digest}
        for each in facts.models.values()
    ]
    return orjson.dumps({"models": models})


# How long Ollama keeps a model loaded, and options of text generation.
_IGNORED = (ignored("keep_alive", ANYTHING), ignored("options", ANYTHING))
EMBED = Operation(
    "Encode texts; vectors have unit length.",
    (
        Field("input", ONE_TEXT_OR_SEVERAL, "input", "Texts.", required=True),
        *CALL,
        Field(
            "truncate",
            one_of(TRUNCATED_OR_NOT),
            "truncation",
            "Whether texts that are too long lose tokens at the end; default: true.",
            default=pb.TRUNCATION_RIGHT,
        ),
        DIMENSIONS,
        *_IGNORED,
    ),
    pb.OutputOptions(pooled=True, normalize=True),
    VECTORS,
    _write_embed,
    record(model=STRING, embeddings=array(VECTOR), prompt_eval_count=COUNT),
    TEI_ERRORS,
)
ONE_EMBEDDING = Operation(
    "Encode one text, as Ollama did before /api/embed.",
    (Field("prompt", ONE_TEXT, "input", "A text.", required=True), *CALL, *_IGNORED),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_one_embedding,
    record(embedding=VECTOR),
    TEI_ERRORS,
    _truncate,
)
TAGS = Description(
    "List the models.", _write_tags, record(models=array(record(name=STRING, digest=STRING))), errors=TEI_ERRORS
)
