"""TEI's form of requests becomes an EncodeRequest, and the reply has TEI's form."""

import json
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput, Overloaded, Unavailable
from headwaiter_server.http.api.operations import ServerFacts
from headwaiter_server.http.api.tei import INFO
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.fields import Question
from tests.support.server.questions import answer, ask, operations
from tests.support.server.stand_ins import model


def read(path: str = "/embed", **fields: Any) -> Question:
    return ask(path, fields).question


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({}, pb.TRUNCATION_ERROR),
        ({"truncation_direction": "Left"}, pb.TRUNCATION_ERROR),
        ({"truncate": True}, pb.TRUNCATION_RIGHT),
        ({"truncate": True, "truncation_direction": "Left"}, pb.TRUNCATION_LEFT),
        ({"truncate": True, "truncation_direction": "right"}, pb.TRUNCATION_RIGHT),
        ({"parameters": {"truncate": True, "truncation_direction": "left"}}, pb.TRUNCATION_LEFT),
        ({"truncate": True, "parameters": {}}, pb.TRUNCATION_RIGHT),
    ],
)
def test_texts_are_truncated_only_on_request(fields: dict[str, Any], truncation: int) -> None:
    assert read(inputs=["a"], **fields).encode.truncation == truncation


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/embed_sparse", {"inputs": "a"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/predict", {"inputs": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/api/embeddings", {"prompt": "a"}),
    ],
)
def test_a_request_may_have_a_deadline_and_a_priority(path: str, body: dict[str, Any]) -> None:
    request = read(path, **body, timeout_s=2, priority="bulk").encode
    assert (request.timeout_s, request.priority) == (2, pb.PRIORITY_BULK)


def test_vectors_have_unit_length_unless_the_request_says_otherwise() -> None:
    assert read(inputs="a").encode.output.normalize
    for request in (
        read(inputs="a", normalize=False, prompt_name="query", dimensions=2).encode,
        read(inputs="a", parameters={"normalize": False, "prompt_name": "query", "dimensions": 2}).encode,
    ):
        assert request.output == pb.OutputOptions(pooled=True, normalize=False, dimensions=2)
        assert request.texts == pb.Texts(values=["a"], prompt="query")


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/embed", {"inputs": "a", "normalize": True, "parameters": {"normalize": False}}, "normalize"),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, "source_sentence"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", 1]}}, "sentences"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [{"text": "b"}]}}, "sentences"),
        ("/embed", {"inputs": [1], "truncate": True}, "truncate"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(path: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(path, **fields)
    assert caught.value.field == field


def test_rows_of_tokens_are_lists_for_each_sequence() -> None:
    asked = ask("/embed_all", {"inputs": ["a", "b c"]})
    assert asked.question.encode.output == pb.OutputOptions(hidden=True)
    assert answer(asked, [[1, 2], [3, 4], [5, 6]], lengths=[1, 2]) == [[[1, 2]], [[3, 4], [5, 6]]]


def test_similarity_compares_the_source_with_each_sentence() -> None:
    asked = ask("/similarity", {"inputs": {"source_sentence": "s", "sentences": ["a", "b"]}, "parameters": {}})
    assert list(asked.question.encode.texts.values) == ["a", "b", "s"]
    assert asked.question.encode.output.normalize
    assert answer(asked, [[0.6, 0.8], [-1, 0], [1, 0]]) == pytest.approx([0.6, -1.0])


@pytest.mark.parametrize(
    ("inputs", "texts", "pairs"),
    [
        ("a", ["a"], None),
        (["a"], ["a"], None),
        ([["a"], ["b"]], ["a", "b"], None),
        (["a", "b"], [], (["a"], ["b"])),
        ([["a", "b"], ["c", "d"]], [], (["a", "c"], ["b", "d"])),
    ],
)
def test_predict_takes_texts_and_pairs(inputs: Any, texts: list[str], pairs: Any) -> None:
    asked = ask("/predict", {"inputs": inputs, "raw_scores": True})
    request = asked.question.encode
    assert list(request.texts.values) == texts
    assert (list(request.pairs.first), list(request.pairs.second)) == (pairs or ([], []))
    assert request.output == pb.OutputOptions(scores=True, raw_scores=True)
    content = answer(asked, [[0.25, 0.75]], head=pb.Head(labels=["no", "yes"]))
    best_first = [{"label": "yes", "score": 0.75}, {"label": "no", "score": 0.25}]
    assert content == ([best_first] if isinstance(inputs[0], list) else best_first)


def test_predict_takes_the_names_of_huggingface_hub() -> None:
    asked = ask("/predict", {"inputs": "a", "parameters": {"function_to_apply": "none", "top_k": 1}})
    assert asked.question.encode.output.raw_scores
    assert answer(asked, [[0.25, 0.75]], head=pb.Head(labels=["no", "yes"])) == [{"label": "yes", "score": 0.75}]


def test_rerank_puts_the_best_text_first() -> None:
    body = {"query": "q", "texts": ["a", "b", "c"], "truncate": True, "raw_scores": True}
    asked = ask("/rerank", body)
    assert asked.question.encode == pb.EncodeRequest(
        pairs=pb.Pairs(first=["q"], second=["a", "b", "c"]),
        output=pb.OutputOptions(scores=True, raw_scores=True, logits=True),
        truncation=pb.TRUNCATION_RIGHT,
    )
    scores = [[0.5], [0.75], [0.5]]
    assert answer(asked, scores) == [
        {"index": 1, "score": 0.75},
        {"index": 0, "score": 0.5},
        {"index": 2, "score": 0.5},
    ]
    assert len(answer(ask("/rerank", {**body, "top_n": 0}), scores)) == 3
    content = answer(ask("/rerank", {**body, "return_text": True, "top_n": 2}), scores)
    assert [(each["index"], each["text"]) for each in content] == [(1, "b"), (0, "a")]


def test_rerank_takes_infinitys_names_too() -> None:
    asked = ask("/rerank", {"query": "q", "documents": ["a"], "model": "m", "return_documents": True})
    assert asked.question.encode.model == "m"
    (result,) = answer(asked, [[0.5]])["results"]
    assert result == {"index": 0, "relevance_score": 0.5, "document": "a"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(InvalidInput("x"), 400, "Validation"), (Overloaded("x"), 429, "Overloaded"), (Unavailable("x"), 503, "Backend")],
)
def test_an_error_has_a_type(error: Any, status: int, kind: str) -> None:
    (operation,) = operations("/embed")
    assert json.loads(operation.errors.write(error, status, operation.fields, {})) == {"error": "x", "error_type": kind}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ({}, {"embedding": {"pooling": "mean"}}),
        (
            {"head": pb.Head(labels=["a", "b"])},
            {"classifier": {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}},
        ),
    ],
)
def test_info_says_what_a_model_is(head: Any, kind: Any, tmp_path: Any) -> None:
    facts = ModelFacts.of(model(tmp_path, max_text_tokens=4, **head), "tiny", "1")
    server = ServerFacts({"tiny": facts}, "1.2", 0, 5, 3, 8)
    content = json.loads(INFO.write(server, facts))
    assert (content["model_id"], content["model_type"], content["version"]) == ("tiny", kind, "1.2")
    limits = ("max_input_length", "max_concurrent_requests", "max_client_batch_size", "max_batch_tokens")
    assert [content[name] for name in limits] == [4, 5, 3, 8]
