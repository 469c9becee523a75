"""The paths of Cohere's interface."""

from dataclasses import replace
from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.tasks import VECTORS
from headwaiter_server.http.api.operations import STRING, Operation, array, float_rows, record, truncate_like_vllm
from headwaiter_server.http.api.sequences import TEXTS
from headwaiter_server.http.api.shared_fields import CALL, INPUT_TYPE, TRUNCATED_END
from headwaiter_server.http.api.vector_forms import (
    ABOUT_FORMS,
    FORMS,
    FORMS_PLACE,
    RANGES,
    adapt_vectors,
    write_form,
    write_vectors,
)
from headwaiter_server.http.api.vllm import RERANK
from headwaiter_server.requests.fields import WHOLE_NUMBER, Field, Question, list_of, one_of

_TYPES = Field("embedding_types", FORMS, FORMS_PLACE, ABOUT_FORMS)


def _write_embed_v2(question: Question, reply: pb.EncodeResponse) -> bytes:
    return _write(question, reply, _by_type(question, reply), "2")


def _write_embed_v1(question: Question, reply: pb.EncodeResponse) -> bytes:
    if question.options.get("forms"):
        return _write(question, reply, _by_type(question, reply), "1")
    vectors = write_form(question, float_rows(reply.pooled))
    return _write(question, reply, {"embeddings": vectors, "response_type": "embeddings_floats"}, "1")


def _by_type(question: Question, reply: pb.EncodeResponse) -> dict[str, Any]:
    return {"embeddings": write_vectors(question, float_rows(reply.pooled)), "response_type": "embeddings_by_type"}


def _write(question: Question, reply: pb.EncodeResponse, vectors: dict[str, Any], version: str) -> bytes:
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": sum(reply.lengths)}}
    texts = list(question.encode.texts.values)
    return orjson.dumps({"id": reply.request_id, **vectors, "texts": texts, "meta": meta})


def _limit_documents(question: Question, manifest: Manifest) -> None:
    """Let documents lose tokens at the end, as max_tokens_per_doc asks.

    Raises:
        InvalidInput: documents would have to be shorter than the model allows, or the request says something else too.
    """
    truncate_like_vllm(question, manifest)
    request, tokens = question.encode, question.options.get("max_tokens_per_doc")
    if tokens is None:
        return
    if request.truncation not in (pb.TRUNCATION_UNSPECIFIED, pb.TRUNCATION_RIGHT):
        problem = "max_tokens_per_doc and truncation contradict each other"
        raise InvalidInput(f"{problem}: send one of them", field="max_tokens_per_doc")
    if tokens < manifest.max_text_tokens:
        raise InvalidInput(
            f"max_tokens_per_doc is {tokens}, and the model takes pairs of {manifest.max_text_tokens} tokens: send at "
            "least this number, or shorten the documents",
            field="max_tokens_per_doc",
            limit=manifest.max_text_tokens,
            actual=tokens,
        )
    request.truncation, request.pairs.pair_truncation = pb.TRUNCATION_RIGHT, pb.PAIR_TRUNCATION_ONLY_SECOND


_FIELDS = (
    Field("texts", TEXTS, "input", "The texts to encode.", required=True),
    *CALL,
    INPUT_TYPE,
    _TYPES,
    RANGES,
    Field(
        "truncate",
        one_of(TRUNCATED_END),
        "truncation",
        "What texts that are too long lose: END (default), START, or NONE to refuse them.",
        default=pb.TRUNCATION_RIGHT,
    ),
)
EMBED_V1 = Operation(
    "Encode texts.",
    _FIELDS,
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_embed_v1,
    record(id=STRING, embeddings={}, texts=array(STRING), meta={"type": "object"}),
    adapt=adapt_vectors,
)
EMBED_V2 = Operation(
    "Encode texts.",
    (*_FIELDS, Field("output_dimension", WHOLE_NUMBER, "output.dimensions", "Number of leading dimensions.")),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_embed_v2,
    record(id=STRING, embeddings={"type": "object"}, texts=array(STRING), meta={"type": "object"}),
    adapt=adapt_vectors,
)
_MAX_TOKENS_PER_DOC = Field(
    "max_tokens_per_doc",
    WHOLE_NUMBER,
    "options.max_tokens_per_doc",
    "At least the model's own maximum: documents that are too long lose tokens at the end.",
)
RERANK_V2 = replace(RERANK, fields=(*RERANK.fields, _MAX_TOKENS_PER_DOC), adapt=_limit_documents)
RERANK_V1 = replace(
    RERANK_V2,
    fields=(
        *RERANK_V2.fields,
        Field("rank_fields", list_of(one_of({"text": None})), about="Only text: the field text of a document counts."),
    ),
)
