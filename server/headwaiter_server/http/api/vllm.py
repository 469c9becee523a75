"""The paths of vLLM's pooling models: rank, score, classify, pool. Jina and infinity have the same form of ranking."""

from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.tasks import CLASSIFIES, RERANKS, ROWS, VECTORS
from headwaiter_server.http.api.errors import TEI_ERRORS
from headwaiter_server.http.api.openai import ENCODED_VECTOR, ENCODING_FORMAT
from headwaiter_server.http.api.operations import (
    COUNT,
    SCORE,
    STRING,
    USAGE,
    VECTOR,
    Operation,
    array,
    float_rows,
    ranking,
    record,
    token_rows,
    token_usage,
)
from headwaiter_server.http.api.shared_fields import (
    ADD_SPECIAL_TOKENS,
    CALL,
    DOCUMENT_TEXTS,
    EMBED_DTYPE,
    ENDIANNESS,
    NORMALIZE_LIKE_VLLM,
    ONE_SEQUENCE_OR_SEVERAL,
    QUERY_TEXT,
    REQUEST_ID,
    TOP_N,
    TRUNCATE_PROMPT_TOKENS,
    TRUNCATION_SIDE,
    USE_ACTIVATION,
    USER,
)
from headwaiter_server.http.api.vector_forms import RANGES, adapt_vectors, write_form
from headwaiter_server.requests.fields import BOOLEAN, Field, Kind, Question, kind_of, one_of
from headwaiter_server.requests.options import DIMENSIONS, NORMALIZE, RAW_SCORES, TRUNCATION

_OPTIONS = (
    *CALL,
    TRUNCATION,
    TRUNCATE_PROMPT_TOKENS,
    TRUNCATION_SIDE,
    USER,
    REQUEST_ID,
    ADD_SPECIAL_TOKENS,
)
RETURN_DOCUMENTS = Field("return_documents", BOOLEAN, "options.with_texts", "Whether the reply repeats the documents.")


def _write_rerank(question: Question, reply: pb.ClassifyResponse, *, bare_texts: bool = False) -> bytes:
    results = []
    for index, score, text in ranking(question, reply):
        document = {"document": text if bare_texts else {"text": text}} if question.options.get("with_texts") else {}
        results.append({"index": index, "relevance_score": score, **document})
    content = {"id": reply.request_id, "object": "rerank", "model": reply.model.name, "results": results}
    return orjson.dumps({**content, "usage": token_usage(reply)})


def _read_sides(value: Any, name: str) -> list[str]:
    """Return the texts of one side of pairs."""
    texts = value if isinstance(value, list) else [value]
    for index, text in enumerate(texts):
        if type(text) is not str:
            problem = f"of {name} is {kind_of(text)}"
            raise InvalidInput(f"{problem}: send a text or a list of texts", field=name, sequence=index)
    if not texts:
        raise InvalidInput(f"{name} is an empty list: send a text or a list of texts", field=name)
    return texts


def _write_list(reply: pb.EncodeResponse | pb.ClassifyResponse, rows: list[dict[str, Any]], **more: Any) -> bytes:
    numbered = [{"index": index, **row} for index, row in enumerate(rows)]
    shared = {"id": reply.request_id, "object": "list", "model": reply.model.name}
    return orjson.dumps({**shared, **more, "data": numbered, "usage": token_usage(reply)})


def _write_scores(_: Question, reply: pb.ClassifyResponse) -> bytes:
    scores = float_rows(reply.scores)[:, 0].tolist()
    return _write_list(reply, [{"object": "score", "score": score} for score in scores])


def _write_classes(_: Question, reply: pb.ClassifyResponse) -> bytes:
    labels = list(reply.head.labels)
    rows = [
        {"label": labels[int(row.argmax())], "probs": row.tolist(), "num_classes": len(labels)}
        for row in float_rows(reply.scores)
    ]
    return _write_list(reply, rows, labels=labels)


def _write_pooled(question: Question, reply: pb.EncodeResponse) -> bytes:
    values: list[Any] = (
        token_rows(reply) if reply.HasField("hidden") else write_form(question, float_rows(reply.pooled))
    )
    return _write_list(reply, [{"object": "pooling", "data": each} for each in values])


def _write_pooled_scores(_: Question, reply: pb.ClassifyResponse) -> bytes:
    return _write_list(reply, [{"object": "pooling", "data": row} for row in float_rows(reply.scores).tolist()])


def _list_of(**row: Any) -> dict[str, Any]:
    return record(id=STRING, object=STRING, model=STRING, data=array(record(index=COUNT, **row)), usage=USAGE)


_SIDE = {"type": "string"}
_SIDES = Kind(
    _read_sides,
    {"anyOf": [_SIDE, {"type": "array", "items": _SIDE, "minItems": 1}], "description": "a text, or a list of texts"},
)
RERANK = Operation(
    "Rank documents by a query, the highest score first.",
    (QUERY_TEXT, DOCUMENT_TEXTS, TOP_N, RETURN_DOCUMENTS, RAW_SCORES, USE_ACTIVATION, *_OPTIONS),
    pb.OutputOptions(scores=True, logits=True),
    RERANKS,
    _write_rerank,
    record(
        id=STRING,
        model=STRING,
        results=array(record(index=COUNT, relevance_score=SCORE)),
        usage=USAGE,
    ),
)
# Infinity's documents are texts, not objects.
INFINITY_RERANK = replace(RERANK, write=partial(_write_rerank, bare_texts=True), errors=TEI_ERRORS)
# The names that vLLM has for the two sides of pairs of texts.
SCORE_PAIRS = [
    Operation(
        "Return the score of each pair of texts.",
        (
            Field(first, _SIDES, "pairs.first", "The first text of all pairs, or of each pair.", required=True),
            Field(second, _SIDES, "pairs.second", "The second text of each pair.", required=True),
            USE_ACTIVATION,
            *_OPTIONS,
        ),
        pb.OutputOptions(scores=True),
        RERANKS,
        _write_scores,
        _list_of(object=STRING, score=SCORE),
    )
    for first, second in (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
]
CLASSIFY = Operation(
    "Classify texts or token ids.",
    (ONE_SEQUENCE_OR_SEVERAL, USE_ACTIVATION, *_OPTIONS),
    pb.OutputOptions(scores=True),
    CLASSIFIES,
    _write_classes,
    _list_of(label=STRING, probs=VECTOR, num_classes=COUNT),
)
_POOLING = (ONE_SEQUENCE_OR_SEVERAL, EMBED_DTYPE, ENDIANNESS, *_OPTIONS)
_FLOATS = Field("encoding_format", one_of({"float": None}), about="Only float.")


def _task(name: str, about: str, *, required: bool = True) -> Field:
    # An error names the tasks of all operations.
    known = one_of(dict.fromkeys(("embed", "token_embed", "classify")))
    return Field("task", Kind(known.read, {"enum": [name]}), about=f"{name}: {about}", required=required)


POOL_TOKENS = Operation(
    "Encode texts or token ids, and return a row for each token.",
    (
        *_POOLING,
        _FLOATS,
        _task("token_embed", "a row for each token."),
    ),
    pb.OutputOptions(hidden=True),
    ROWS,
    _write_pooled,
    _list_of(object=STRING, data=array(VECTOR)),
)
POOL_SCORES = Operation(
    "Classify texts or token ids, and return the scores of all labels.",
    (
        *_POOLING,
        _FLOATS,
        USE_ACTIVATION,
        _task("classify", "the scores of all labels for each sequence."),
    ),
    pb.OutputOptions(scores=True),
    CLASSIFIES,
    _write_pooled_scores,
    _list_of(object=STRING, data=VECTOR),
)
POOL = Operation(
    "Encode texts or token ids.",
    (
        *_POOLING,
        ENCODING_FORMAT,
        RANGES,
        DIMENSIONS,
        NORMALIZE,
        NORMALIZE_LIKE_VLLM,
        _task("embed", "a vector for each sequence; the default.", required=False),
    ),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_pooled,
    _list_of(object=STRING, data=ENCODED_VECTOR),
    adapt=adapt_vectors,
)
