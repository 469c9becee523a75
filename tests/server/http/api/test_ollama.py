"""Ollama's form of requests becomes an EncodeRequest, and the reply has Ollama's form."""

import json
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.http.api.ollama import TAGS
from headwaiter_server.http.api.operations import ServerFacts
from headwaiter_server.models.served_model import ModelFacts
from tests.support.server.questions import answer, ask
from tests.support.server.stand_ins import model


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({}, pb.TRUNCATION_RIGHT),
        ({"truncate": False}, pb.TRUNCATION_ERROR),
        ({"options": {"a": 1}}, pb.TRUNCATION_RIGHT),
    ],
)
def test_vectors_have_unit_length_and_texts_are_truncated(fields: dict[str, Any], truncation: Any) -> None:
    asked = ask("/api/embed", {"model": "m", "input": "a", "keep_alive": "5m", **fields})
    assert asked.question.encode == pb.EncodeRequest(
        model="m",
        texts=pb.Texts(values=["a"]),
        output=pb.OutputOptions(pooled=True, normalize=True),
        truncation=truncation,
    )
    assert answer(asked, [[1, 2]]) == {"model": "m", "embeddings": [[1, 2]], "prompt_eval_count": 3}


def test_the_older_path_returns_one_vector_as_the_model_gives_it() -> None:
    asked = ask("/api/embeddings", {"model": "m", "prompt": "a", "options": {}})
    assert asked.question.encode == pb.EncodeRequest(
        model="m",
        texts=pb.Texts(values=["a"]),
        output=pb.OutputOptions(pooled=True),
        truncation=pb.TRUNCATION_RIGHT,
    )
    assert answer(asked, [[1, 2]]) == {"embedding": [1, 2]}


def test_tags_list_the_models(tmp_path: Any) -> None:
    facts = ModelFacts.of(model(tmp_path), "tiny", "1")
    content = json.loads(TAGS.write(ServerFacts({"tiny": facts}, "1", 86400, 1, 1, 1), None))
    (listed,) = content["models"]
    assert (listed["name"], listed["model"], listed["modified_at"]) == ("tiny", "tiny", "1970-01-02T00:00:00+00:00")
