"""The forms of reranking (Cohere, Jina, TEI) and of classification (vLLM), from and to JSON. Pure functions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.json_fields import JsonFields, fill_input
from headwaiter_server.http.openai import TRUNCATIONS, float_rows
from headwaiter_server.http.tei import read_truncation

_RERANK_FIELDS = ("model", "query", "documents", "top_n", "return_documents", "truncation", "timeout_s")
_TEI_FIELDS = ("query", "texts", "truncate", "truncation_direction", "raw_scores", "return_text")
_CLASSIFY_FIELDS = ("model", "input", "truncation", "timeout_s")


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A request to rank documents by a query.

    Attributes:
        encode: the request for scores in the form of headwaiter.v1, with a pair for each document.
        top_n: number of documents in the reply; 0 for all.
        with_texts: whether the reply repeats the documents.
    """

    encode: pb.EncodeRequest
    top_n: int
    with_texts: bool


def read_rerank_request(raw: bytes) -> RerankRequest:
    """Read the body of POST /v1/rerank and /v2/rerank; documents are texts, or objects with the field `text`.

    Raises:
        InvalidInput: the body is wrong.
    """
    fields = JsonFields(raw, _RERANK_FIELDS)
    documents = fields.value("documents")
    if isinstance(documents, list):
        documents = [each.get("text") if isinstance(each, dict) else each for each in documents]
    request = _pairs(fields, documents, "documents", "a list of texts, or of objects with the field text")
    request.model, request.timeout_s = fields.text("model"), fields.seconds("timeout_s")
    request.truncation = fields.choice("truncation", TRUNCATIONS)
    return RerankRequest(request, fields.whole_number("top_n"), fields.boolean("return_documents", default=False))


def rerank_reply(request: RerankRequest, reply: pb.ClassifyResponse) -> bytes:
    """Write the reply to POST /v1/rerank and /v2/rerank: the documents with the highest scores first."""
    texts, scores = request.encode.pairs.second, float_rows(reply.scores)[:, 0]
    results: list[dict[str, Any]] = []
    for index in _ranking(scores)[: request.top_n or None]:
        document = {"document": {"text": texts[index]}} if request.with_texts else {}
        results.append({"index": index, "relevance_score": float(scores[index]), **document})
    usage = {"total_tokens": sum(reply.lengths)}
    return orjson.dumps({"id": reply.request_id, "model": reply.model.name, "results": results, "usage": usage})


def read_tei_rerank_request(raw: bytes) -> RerankRequest:
    """Read the body of POST /rerank.

    Raises:
        InvalidInput: the body is wrong.
    """
    fields = JsonFields(raw, _TEI_FIELDS)
    request = _pairs(fields, fields.value("texts"), "texts", "a list of texts")
    request.truncation = read_truncation(fields)
    request.output.raw_scores = fields.boolean("raw_scores", default=False)
    return RerankRequest(request, 0, fields.boolean("return_text", default=False))


def tei_rerank_reply(request: RerankRequest, reply: pb.ClassifyResponse) -> bytes:
    """Write the reply to POST /rerank: the texts with the highest scores first."""
    texts, scores = request.encode.pairs.second, float_rows(reply.scores)[:, 0]
    return orjson.dumps(
        [
            {"index": index, "score": float(scores[index]), **({"text": texts[index]} if request.with_texts else {})}
            for index in _ranking(scores)
        ]
    )


def read_classify_request(raw: bytes) -> pb.EncodeRequest:
    """Read the body of POST /v1/classify.

    Raises:
        InvalidInput: the body is wrong.
    """
    fields = JsonFields(raw, _CLASSIFY_FIELDS)
    request = pb.EncodeRequest(model=fields.text("model"), timeout_s=fields.seconds("timeout_s"))
    fill_input(request, fields.value("input"), "input")
    request.truncation = fields.choice("truncation", TRUNCATIONS)
    request.output.scores = True
    return request


def classify_reply(reply: pb.ClassifyResponse) -> bytes:
    """Write the reply to POST /v1/classify: for each sequence the scores of all labels, and the best label."""
    labels, tokens = list(reply.head.labels), sum(reply.lengths)
    rows = [
        {
            "index": index,
            "label": labels[int(row.argmax())],
            "probs": row.tolist(),
            "num_classes": len(labels),
        }
        for index, row in enumerate(float_rows(reply.scores))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    content = {"id": reply.request_id, "object": "list", "model": reply.model.name, "labels": labels, "data": rows}
    return orjson.dumps({**content, "usage": usage})


def _pairs(fields: JsonFields, documents: Any, field: str, wanted: str) -> pb.EncodeRequest:
    """Return a request for the scores of a query with each of the documents; `wanted` is the form of the documents."""
    query = fields.text("query")
    if not query.strip():
        raise InvalidInput("query is absent or empty: send a text of at least one word", field="query")
    if not documents:
        raise InvalidInput(f"{field} is absent or empty: send {wanted}", field=field)
    if not isinstance(documents, list) or not all(type(each) is str for each in documents):
        raise InvalidInput(f"{field} has another form: send {wanted}", field=field)
    return pb.EncodeRequest(pairs=pb.Pairs(first=[query], second=documents), output=pb.OutputOptions(scores=True))


def _ranking(scores: NDArray[np.float32]) -> list[int]:
    """Return the indices of the scores, the highest score first; equal scores keep their order."""
    ranking: list[int] = np.argsort(-scores, kind="stable").tolist()
    return ranking
