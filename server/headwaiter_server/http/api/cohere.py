"""The paths of Cohere's interface."""

from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.tasks import RERANKS, VECTORS
from headwaiter_server.http.api.fields import TEXTS, WHOLE_NUMBER, Field, Question, list_of, one_of
from headwaiter_server.http.api.openai import write_vectors
from headwaiter_server.http.api.operations import WORDS, Operation, array, record
from headwaiter_server.http.api.shared_fields import INPUT_TYPE, MODEL, PRIORITY, TIMEOUT_S
from headwaiter_server.http.api.vllm import RERANK

_TRUNCATIONS = {"NONE": pb.TRUNCATION_ERROR, "START": pb.TRUNCATION_LEFT, "END": pb.TRUNCATION_RIGHT}
_TYPES = Field("embedding_types", list_of(one_of({"float": "float", "base64": "base64"})), "reply.types", "The forms.")


def _write_embed_v2(question: Question, reply: pb.EncodeResponse) -> bytes:
    return _write(
        question, reply, {"embeddings": _by_type(question, reply), "response_type": "embeddings_by_type"}, "2"
    )


def _write_embed_v1(question: Question, reply: pb.EncodeResponse) -> bytes:
    if question.reply.get("types"):
        vectors = {"embeddings": _by_type(question, reply), "response_type": "embeddings_by_type"}
    else:
        vectors = {"embeddings": write_vectors(question, reply), "response_type": "embeddings_floats"}
    return _write(question, reply, vectors, "1")


def _by_type(question: Question, reply: pb.EncodeResponse) -> Any:
    forms = question.reply.get("types") or ["float"]
    return {form: write_vectors(Question(question.encode, {"base64": form == "base64"}), reply) for form in forms}


def _write(question: Question, reply: pb.EncodeResponse, vectors: dict[str, Any], version: str) -> bytes:
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": sum(reply.lengths)}}
    texts = list(question.encode.texts.values)
    return orjson.dumps({"id": reply.request_id, **vectors, "texts": texts, "meta": meta})


_FIELDS = (
    Field("texts", TEXTS, "input", "The texts to encode.", required=True),
    MODEL,
    INPUT_TYPE,
    _TYPES,
    Field("truncate", one_of(_TRUNCATIONS), "truncation", "What long texts lose.", default=pb.TRUNCATION_RIGHT),
    PRIORITY,
    TIMEOUT_S,
)
EMBED_V1 = Operation(
    "Encode texts.",
    _FIELDS,
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_embed_v1,
    record(id=WORDS, embeddings={}, texts=array(WORDS), meta={"type": "object"}),
)
EMBED_V2 = Operation(
    "Encode texts.",
    (*_FIELDS, Field("output_dimension", WHOLE_NUMBER, "output.dimensions", "Number of leading dimensions.")),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_embed_v2,
    record(id=WORDS, embeddings={"type": "object"}, texts=array(WORDS), meta={"type": "object"}),
)
_MAX_TOKENS_PER_DOC = Field(
    "max_tokens_per_doc",
    WHOLE_NUMBER,
    "reply.max_tokens_per_doc",
    "At least the model's own maximum: documents that are too long lose tokens at the end.",
)
RERANK_V2 = Operation(
    RERANK.about,
    (*RERANK.fields, _MAX_TOKENS_PER_DOC),
    pb.OutputOptions(scores=True),
    RERANKS,
    RERANK.write,
    RERANK.reply,
)
RERANK_V1 = Operation(
    RERANK.about,
    (
        *RERANK_V2.fields,
        # The field text of a document counts, which is what this field says.
        Field("rank_fields", list_of(one_of({"text": None})), about="No effect."),
    ),
    pb.OutputOptions(scores=True),
    RERANKS,
    RERANK.write,
    RERANK.reply,
)
