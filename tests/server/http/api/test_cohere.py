"""Cohere's form of requests becomes an EncodeRequest, and the reply has Cohere's form."""

import base64
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from tests.support.server.questions import adapt, answer, ask

VECTORS = np.array([[1.5, 2.0], [3.0, -4.0]], "<f4")
BODY = {"texts": ["a", "b"], "model": "m"}
IN_BASE64 = [base64.b64encode(row.tobytes()).decode() for row in VECTORS]


def test_texts_are_truncated_unless_the_request_says_otherwise() -> None:
    request = ask("/v2/embed", {**BODY, "output_dimension": 1}).question.encode
    assert request == pb.EncodeRequest(
        model="m",
        texts=pb.Texts(values=["a", "b"]),
        output=pb.OutputOptions(pooled=True, dimensions=1),
        truncation=pb.TRUNCATION_RIGHT,
    )
    # 0 is Cohere's own default.
    assert ask("/v2/embed", {**BODY, "priority": 0}).question.encode.priority == pb.PRIORITY_INTERACTIVE
    for word, truncation in {"NONE": pb.TRUNCATION_ERROR, "START": pb.TRUNCATION_LEFT}.items():
        assert ask("/v1/embed", {**BODY, "truncate": word}).question.encode.truncation == truncation


@pytest.mark.parametrize(
    ("path", "types", "embeddings"),
    [
        ("/v1/embed", None, VECTORS.tolist()),
        ("/v1/embed", ["float"], {"float": VECTORS.tolist()}),
        ("/v2/embed", None, {"float": VECTORS.tolist()}),
        ("/v2/embed", ["float", "base64"], {"float": VECTORS.tolist(), "base64": IN_BASE64}),
        ("/v1/embed", ["int8", "ubinary"], {"int8": [[95, 127], [95, -127]], "ubinary": [[192], [128]]}),
    ],
)
def test_vectors_have_the_forms_that_the_request_names(path: str, types: Any, embeddings: Any) -> None:
    content = answer(ask(path, {**BODY, "embedding_types": types}), VECTORS)
    assert content["embeddings"] == embeddings
    assert (content["id"], content["texts"]) == ("r", ["a", "b"])
    assert content["meta"]["billed_units"]["input_tokens"] == 6


@pytest.mark.parametrize(
    ("input_type", "prompts", "chosen"),
    [
        ("search_query", [], ""),
        ("search_query", ["query", "passage"], "query"),
        ("search_document", ["query", "passage"], "passage"),
        ("search_document", ["query"], ""),
        ("clustering", ["clustering"], "clustering"),
    ],
)
def test_the_input_type_chooses_a_prompt_that_the_model_has(input_type: str, prompts: list[str], chosen: str) -> None:
    asked = ask("/v2/embed", {**BODY, "input_type": input_type})
    assert adapt(asked, prompts=[pb.Prompt(name=name) for name in prompts]).texts.prompt == chosen


@pytest.mark.parametrize("body", [{"input": [1, 2]}, {"input": "a", "prompt": "document"}])
def test_an_input_type_that_would_be_ignored_is_refused(body: dict[str, Any]) -> None:
    asked = ask("/v1/embeddings", {**body, "input_type": "query"})
    with pytest.raises(InvalidInput) as refused:
        adapt(asked, prompts=[pb.Prompt(name="query")])
    assert refused.value.field == "input_type"


def test_documents_may_be_as_long_as_the_model_allows() -> None:
    body = {"query": "q", "documents": ["a"], "max_tokens_per_doc": 512}
    request = adapt(ask("/v2/rerank", body), max_text_tokens=512)
    assert request.truncation == pb.TRUNCATION_RIGHT
    assert request.pairs.pair_truncation == pb.PAIR_TRUNCATION_ONLY_SECOND
    limited = adapt(ask("/v2/rerank", {**body, "truncate_prompt_tokens": -1}), max_text_tokens=512)
    assert limited.pairs.pair_truncation == pb.PAIR_TRUNCATION_ONLY_SECOND
    with pytest.raises(InvalidInput) as refused:
        adapt(ask("/v2/rerank", body), max_text_tokens=513)
    assert (refused.value.field, refused.value.limit, refused.value.actual) == ("max_tokens_per_doc", 513, 512)
    for truncation in ("left", "error"):
        with pytest.raises(InvalidInput, match="contradict"):
            adapt(ask("/v2/rerank", {**body, "truncation": truncation}), max_text_tokens=512)


def test_a_form_that_is_named_often_is_written_once() -> None:
    types = ["float"] * 50_000
    assert answer(ask("/v2/embed", {**BODY, "embedding_types": types}), VECTORS)["embeddings"].keys() == {"float"}
