"""A request that names no model gets the default model, or the only one that can do what the request needs."""

from pathlib import Path
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput, Starting
from headwaiter_proto.rules.tasks import CLASSIFIES, RERANKS, ROWS, SCORES, VECTORS, Ability, of_texts
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.model_version import ModelState, VersionStatus
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from tests.support.server.stand_ins import model

HEADS: dict[str, dict[str, Any]] = {
    "embedder": {},
    "texts": {"max_text_tokens": 10},
    "rows": {"pooling": pb.POOLING_NONE},
    "ranker": {"head": pb.Head(labels=["s"]), "takes_pairs": True},
    "classifier": {"head": pb.Head(labels=["a", "b"])},
    "tagger": {"head": pb.Head(labels=["a", "b"], per_token=True), "pooling": pb.POOLING_NONE},
}


def directory(folder: Path, names: str, default: str = "", **options: Any) -> ModelDirectory:
    made = ModelDirectory(default, single=options.get("single", False))
    recorder = Recorder()
    current = {
        name: ServedModel(
            ModelFacts.of(model(folder, **HEADS[name.rstrip("2")]), name, "1"), None, recorder.model(name, "1")
        )
        for name in names.split()
    }
    made.started = options.get("started", True)
    made.update(options.get("versions", []), current)
    return made


@pytest.mark.parametrize(
    ("names", "default", "wanted", "found"),
    [
        ("embedder ranker classifier", "", VECTORS, "embedder"),
        ("embedder ranker classifier", "", RERANKS, "ranker"),
        ("embedder ranker classifier", "", CLASSIFIES, "classifier"),
        ("embedder ranker", "", SCORES, "ranker"),
        ("embedder ranker", "embedder", RERANKS, "ranker"),
        ("embedder ranker", "embedder", SCORES, "ranker"),
        ("embedder ranker", "ranker", VECTORS, "ranker"),
        ("embedder embedder2", "embedder2", VECTORS, "embedder2"),
        ("rows embedder", "rows", VECTORS, "embedder"),
        ("rows tagger", "", ROWS, "rows"),
        ("ranker", "ranker", CLASSIFIES, "ranker"),
        ("embedder", "", None, "embedder"),
        ("embedder texts", "", of_texts(VECTORS), "texts"),
        ("embedder ranker", "ranker", None, "ranker"),
    ],
)
def test_a_request_without_a_name_gets_the_model_that_suits(
    names: str, default: str, wanted: Ability | None, found: str, tmp_path: Path
) -> None:
    assert directory(tmp_path, names, default).find("", wanted=wanted).name == found


@pytest.mark.parametrize(
    ("names", "default", "wanted", "offered"),
    [
        ("embedder embedder2 ranker", "", VECTORS, {"embedder", "embedder2"}),
        ("embedder ranker ranker2", "", RERANKS, {"ranker", "ranker2"}),
        ("embedder ranker ranker2", "embedder", RERANKS, {"ranker", "ranker2"}),
        ("embedder ranker", "", None, {"embedder", "ranker"}),
        ("ranker classifier", "", VECTORS, {"ranker", "classifier"}),
        ("embedder embedder2", "", RERANKS, set()),
    ],
)
def test_a_request_that_several_models_or_none_suit_must_name_one(
    names: str, default: str, wanted: Ability | None, offered: set[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        directory(tmp_path, names, default).find("", wanted=wanted)
    assert refused.value.field == "model"
    assert {name for name in names.split() if f"{name!r}" in str(refused.value).partition("send one of")[2]} == offered


@pytest.mark.parametrize(
    ("name", "wanted", "words"),
    [
        ("embedder", RERANKS, ["'embedder' encodes", "send one of 'ranker'"]),
        ("embedder", CLASSIFIES, ["send one of 'classifier'"]),
        ("tagger", VECTORS, ["classifies tokens", "send one of 'embedder'"]),
        ("classifier", RERANKS, ["encodes and classifies"]),
    ],
)
def test_a_model_that_cannot_do_it_is_refused_with_those_that_can(
    name: str, wanted: Ability, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        directory(tmp_path, "embedder ranker classifier tagger").find(name, wanted=wanted)
    assert refused.value.field == "model"
    assert [each for each in words if each not in str(refused.value)] == []


def test_the_default_model_is_the_first_of_those_that_are_served(tmp_path: Path) -> None:
    assert [each.name for each in directory(tmp_path, "embedder ranker rows", "rows").served] == [
        "rows",
        "embedder",
        "ranker",
    ]


def test_a_default_model_that_is_not_loaded_is_not_replaced(tmp_path: Path) -> None:
    made = directory(tmp_path, "embedder", "embedder2")
    with pytest.raises(Exception, match="embedder2"):
        made.find("", wanted=VECTORS)


def test_the_model_of_a_single_bundle_answers_whatever_a_request_needs(tmp_path: Path) -> None:
    assert directory(tmp_path, "ranker", single=True).find("", wanted=VECTORS).name == "ranker"
    with pytest.raises(InvalidInput, match="'embedder' encodes"):
        directory(tmp_path, "embedder", single=True).find("", wanted=RERANKS)


LOADING = VersionStatus("embedder", 1, ModelState.LOADING)


@pytest.mark.parametrize("options", [{"started": False}, {"versions": [LOADING]}])
def test_no_other_model_answers_an_unnamed_request_while_a_model_is_loading(
    options: dict[str, Any], tmp_path: Path
) -> None:
    for request in ({"name": "", "wanted": VECTORS}, {"name": ""}, {"name": "embedder"}):
        with pytest.raises(Starting) as refused:
            directory(tmp_path, "ranker", **options).find(**request)
        assert refused.value.retry_after_s == 1
    assert directory(tmp_path, "ranker", **options).find("ranker", wanted=RERANKS).name == "ranker"
