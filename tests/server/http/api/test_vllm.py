"""The forms of reranking, scoring, classification and pooling become requests, and replies have vLLM's form."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from tests.support.server.questions import adapt, answer, ask

PAIRS = pb.Pairs(first=["q"], second=["a", "b", "c"])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_a_query_and_documents_become_pairs(path: str) -> None:
    body = {"query": "q", "documents": ["a", {"text": "b"}, "c"], "model": "m", "top_n": 2, "timeout_s": 2}
    question = ask(path, body).question
    assert question.options == {"top_n": 2}
    assert question.encode == pb.EncodeRequest(
        model="m", timeout_s=2, pairs=PAIRS, output=pb.OutputOptions(scores=True, logits=True)
    )


# test_openapi.py has the errors of single fields.
def test_names_of_two_kinds_of_pairs_are_not_mixed() -> None:
    with pytest.raises(InvalidInput) as refused:
        ask("/score", {"text_1": "a", "documents": ["c"]})
    assert refused.value.field == "documents"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(1, 0.75, None), (0, 0.5, None), (2, 0.5, None)]),
        ({"top_n": 0, "priority": 0, "request_id": "r"}, [(1, 0.75, None), (0, 0.5, None), (2, 0.5, None)]),
        ({"top_n": 2, "return_documents": True}, [(1, 0.75, "b"), (0, 0.5, "a")]),
        ({"top_n": 9, "return_documents": True}, [(1, 0.75, "b"), (0, 0.5, "a"), (2, 0.5, "c")]),
    ],
)
def test_the_best_documents_come_first_and_equal_ones_keep_their_order(
    options: dict[str, Any], expected: list[tuple[int, float, str | None]]
) -> None:
    asked = ask("/v1/rerank", {"query": "q", "documents": ["a", "b", "c"], **options})
    content = answer(asked, [[0.5], [0.75], [0.5]])
    results = content["results"]
    texts = [each["document"]["text"] if "document" in each else None for each in results]
    assert [(each["index"], each["relevance_score"]) for each in results] == [each[:2] for each in expected]
    assert texts == [each[2] for each in expected]
    assert (content["id"], content["model"], content["usage"]) == ("r", "m", {"prompt_tokens": 9, "total_tokens": 9})


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_whose_scores_are_equal_have_the_order_of_their_logits(path: str) -> None:
    asked = ask(path, {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})
    results = answer(asked, [[1.0], [1.0], [1.0]], logits=[[20.0], [29.0], [24.0]])["results"]
    assert [(each["index"], each["relevance_score"]) for each in results] == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
@pytest.mark.parametrize("first", ["q", ["q"], ["q", "q"]])
def test_a_score_belongs_to_each_pair(path: str, names: tuple[str, str], first: Any) -> None:
    asked = ask(path, {names[0]: first, names[1]: ["a", "b"], "use_activation": False})
    # One first text stands for all pairs, and is not repeated here: thousands of copies would not fit into memory.
    assert list(asked.question.encode.pairs.first) == ([first] if isinstance(first, str) else first)
    assert list(asked.question.encode.pairs.second) == ["a", "b"]
    assert asked.question.encode.output.raw_scores
    content = answer(asked, [[0.25], [0.5]])
    assert [(each["index"], each["object"], each["score"]) for each in content["data"]] == [
        (0, "score", 0.25),
        (1, "score", 0.5),
    ]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_a_classification_names_the_best_label(path: str) -> None:
    asked = ask(path, {"input": ["x", "y"], "model": "m", "truncation": "right"})
    assert asked.question.encode == pb.EncodeRequest(
        model="m",
        texts=pb.Texts(values=["x", "y"]),
        output=pb.OutputOptions(scores=True),
        truncation=pb.TRUNCATION_RIGHT,
    )
    content = answer(asked, [[0.25, 0.75], [1.0, 0.0]], head=pb.Head(labels=["no", "yes"]))
    assert content["labels"] == ["no", "yes"]
    assert [(each["index"], each["label"], each["probs"], each["num_classes"]) for each in content["data"]] == [
        (0, "yes", [0.25, 0.75], 2),
        (1, "no", [1.0, 0.0], 2),
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/score", "/classify", "/pooling"])
def test_texts_are_truncated_to_the_models_own_maximum(path: str) -> None:
    pairs: dict[str, Any] = {"/v1/rerank": {"query": "q", "documents": ["a"]}, "/score": {"text_1": "q", "text_2": "a"}}
    body = {**pairs.get(path, {"input": "a"}), "truncate_prompt_tokens": 16}
    assert adapt(ask(path, body), max_text_tokens=16).truncation == pb.TRUNCATION_RIGHT
    with pytest.raises(InvalidInput) as refused:
        adapt(ask(path, body), max_text_tokens=17)
    assert (refused.value.field, refused.value.limit) == ("truncate_prompt_tokens", 17)


@pytest.mark.parametrize("fields", [{}, {"task": "embed"}, {"encoding_format": "float", "endianness": "native"}])
def test_pooling_returns_vectors(fields: dict[str, Any]) -> None:
    content = answer(ask("/pooling", {"input": ["x", "y"], **fields}), [[1, 2], [3, 4]])
    assert [each["data"] for each in content["data"]] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("use_activation", [None, False])
def test_pooling_returns_the_scores_of_labels(use_activation: bool | None) -> None:
    asked = ask("/pooling", {"input": ["x", "y"], "task": "classify", "use_activation": use_activation})
    assert asked.question.encode.output.scores
    assert asked.question.encode.output.raw_scores == (use_activation is False)
    content = answer(asked, [[0.25, 0.75], [1.0, 0.0]], head=pb.Head(labels=["no", "yes"]))
    assert [(each["object"], each["data"]) for each in content["data"]] == [
        ("pooling", [0.25, 0.75]),
        ("pooling", [1.0, 0.0]),
    ]


def test_pooling_returns_the_rows_of_tokens() -> None:
    nothing = {"dimensions": None, "encoding_format": "float"}
    asked = ask("/pooling", {"input": ["x", "y z"], "task": "token_embed", **nothing})
    content = answer(asked, [[1, 2], [3, 4], [5, 6]], lengths=[1, 2])
    assert [each["data"] for each in content["data"]] == [[[1, 2]], [[3, 4], [5, 6]]]
