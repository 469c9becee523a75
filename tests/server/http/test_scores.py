"""The forms of reranking and of classification become requests for scores, and replies become ranked documents."""

import json
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.scores import (
    RerankRequest,
    classify_reply,
    read_classify_request,
    read_rerank_request,
    read_tei_rerank_request,
    rerank_reply,
    tei_rerank_reply,
)

PAIRS = pb.Pairs(first=["q"], second=["a", "b", "c"])


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def reply(scores: Any, **head: Any) -> pb.ClassifyResponse:
    values = np.array(scores, "<f4")
    tensor = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=values.shape, data=values.tobytes())
    ref = pb.ModelRef(name="m")
    return pb.ClassifyResponse(request_id="r", model=ref, scores=tensor, lengths=[3, 4, 5], head=pb.Head(**head))


def test_a_query_and_documents_become_pairs() -> None:
    request = read_rerank_request(
        body(query="q", documents=["a", {"text": "b"}, "c"], model="m", top_n=2, return_documents=True, timeout_s=2)
    )
    assert (request.top_n, request.with_texts) == (2, True)
    assert request.encode == pb.EncodeRequest(
        model="m",
        timeout_s=2,
        pairs=PAIRS,
        output=pb.OutputOptions(scores=True),
        truncation=pb.TRUNCATION_ERROR,
    )
    tei = read_tei_rerank_request(body(query="q", texts=["a", "b", "c"], truncate=True, raw_scores=True))
    assert (tei.top_n, tei.with_texts) == (0, False)
    assert tei.encode == pb.EncodeRequest(
        pairs=PAIRS, output=pb.OutputOptions(scores=True, raw_scores=True), truncation=pb.TRUNCATION_RIGHT
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": "a"}, "documents"),
        ({"query": "q", "documents": ["a", 1]}, "documents"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": 1, "documents": ["a"]}, "query"),
        ({"query": " ", "documents": ["a"]}, "query"),
        ({"documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["text"]}, "rank_fields"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_rerank_request(body(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("top_n", "with_texts", "expected"),
    [
        (0, False, [(1, 0.75, None), (0, 0.5, None), (2, 0.5, None)]),
        (2, True, [(1, 0.75, "b"), (0, 0.5, "a")]),
        (9, True, [(1, 0.75, "b"), (0, 0.5, "a"), (2, 0.5, "c")]),
    ],
)
def test_the_best_documents_come_first_and_equal_ones_keep_their_order(
    top_n: int, with_texts: bool, expected: list[tuple[int, float, str | None]]
) -> None:
    request = RerankRequest(pb.EncodeRequest(pairs=PAIRS), top_n, with_texts)
    content = json.loads(rerank_reply(request, reply([[0.5], [0.75], [0.5]])))
    assert [
        (each["index"], each["relevance_score"], each["document"]["text"] if with_texts else each.get("document"))
        for each in content["results"]
    ] == expected
    assert (content["id"], content["model"], content["usage"]) == ("r", "m", {"total_tokens": 12})
    tei = json.loads(tei_rerank_reply(request, reply([[0.5], [0.75], [0.5]])))
    assert [(each["index"], each["score"]) for each in tei] == [(1, 0.75), (0, 0.5), (2, 0.5)]
    assert [each.get("text") for each in tei] == (["b", "a", "c"] if with_texts else [None] * 3)


def test_a_classification_names_the_best_label() -> None:
    request = read_classify_request(body(input=["x", "y"], model="m", truncation="right"))
    assert request == pb.EncodeRequest(
        model="m",
        texts=pb.Texts(values=["x", "y"]),
        output=pb.OutputOptions(scores=True),
        truncation=pb.TRUNCATION_RIGHT,
    )
    content = json.loads(classify_reply(reply([[0.25, 0.75], [1.0, 0.0]], labels=["no", "yes"])))
    assert content["labels"] == ["no", "yes"]
    assert [(each["index"], each["label"], each["probs"], each["num_classes"]) for each in content["data"]] == [
        (0, "yes", [0.25, 0.75], 2),
        (1, "no", [1.0, 0.0], 2),
    ]
