"""Models of several vectors for each text give the vectors of MultiVectorEncoder of `sentence-transformers`."""

import json
import shutil
import string
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import finish
from tests.support.checkpoints import save_bert, write_json
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.support.export.multi_vector_encoder import (
    DOCUMENTS,
    EXPANSION,
    QUERIES,
    VECTOR_WIDTH,
    expected_vectors,
    save_multi_vector_encoder,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = [pytest.mark.filterwarnings("ignore")]
pytest.importorskip("sentence_transformers")

PUNCTUATION = {"skiplist_words": list(string.punctuation)}
# The vectors of a usual model are compared in tests/e2e/test_multi_vector.py.
EVERY_RUN: list[dict[str, Any]] = [
    {"transformer": {"query_expansion": {**EXPANSION, "attend": True, "strategy": "min"}, "query_length": 20}},
    {"family": "ModernBert", "transformer": {"query_expansion": {**EXPANSION, "length": 5}, "document_length": 9}},
]
OTHERS: list[dict[str, Any]] = [
    {},
    {"transformer": {}},
    {"transformer": {"query_length": 6, "document_length": 9}},
    {"transformer": {"query_expansion": {**EXPANSION, "strategy": "min"}}},
    {"transformer": {"query_expansion": {**EXPANSION, "strategy": "min"}, "query_length": 15}},
    {"transformer": {"query_expansion": {**EXPANSION, "token": "[UNK]"}}},
    {"mask": {}},
    {"mask": {**PUNCTUATION, "skiplist_tasks": ["query", "document"]}},
    {"mask": {"skiplist_words": ["stone", "rain", "[SEP]"], "skiplist_tasks": "document"}},
    {"prompts": {}},
    {"prompts": {"query": "search: ", "document": ""}},
    # A tokenizer without a token after the text needs attention to all masks.
    {"ends": "", "transformer": {"query_expansion": {**EXPANSION, "attend": True}}},
    {"prompts": {"query": "search: ", "document": "[D] ", "other": "the "}},
    {"dense": ()},
    {"dense": (24, 7)},
    *({"family": family} for family in ("XLMRoberta", "MPNet", "DistilBert", "NomicBert", "Gte", "EuroBert")),
]


def vectors(loaded: LoadedModel, texts: list[str], prompt: str) -> list[Array]:
    """Return the hidden rows that a reply to texts with a prompt has."""
    text, encoder = loaded.text, loaded.encoder
    assert text is not None
    chosen = next(pb.Prompt(**asdict(each)) for each in text.prompts if each.name == prompt)
    tokenizer, failures = BundleTokenizer(text.tokenizer.encode(), text.max_tokens), Failures(keep=False)
    tokenized = finish(tokenizer.tokenize(texts, TokenizeOptions(chosen, Truncation.RIGHT), failures, 9999))
    outputs = run_in_pytorch(encoder, [each.ids for each in tokenized])
    return [
        one.hidden[~np.isin(each.ids, chosen.skiplist_ids)]
        for each, one in zip(tokenized, outputs, strict=True)
        if one.hidden is not None
    ]


@pytest.mark.parametrize("settings", [*EVERY_RUN, *exhaustive(*OTHERS)])
def test_the_vectors_equal_those_of_sentence_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    save_multi_vector_encoder(tmp_path / "model", **settings)
    loaded = read_checkpoint(tmp_path / "model")
    assert_equal_vectors(loaded, tmp_path / "model")
    assert loaded.text is not None
    assert loaded.text.default_prompt == "document"
    dense = settings.get("dense", (VECTOR_WIDTH,))
    assert loaded.encoder.config.pooled_width == (dense[-1] if dense else loaded.encoder.config.width)


def assert_equal_vectors(loaded: LoadedModel, folder: Path) -> None:
    """Check the vectors of all queries and documents."""
    queries, documents = expected_vectors(folder)
    for texts, name, expected in ((QUERIES, "query", queries), (DOCUMENTS, "document", documents)):
        actual = vectors(loaded, texts, name)
        assert [len(each) for each in actual] == [len(each) for each in expected]
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model."""
    folder = tmp_path_factory.mktemp("multi-vector") / "model"
    save_multi_vector_encoder(folder)
    return folder


@pytest.mark.parametrize(
    ("file", "changes", "facts"),
    [
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, ["keep_only_token_ids"]),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, ["skiplist_tasks"]),
        ("2_MultiVectorMask/config.json", {"skiplist_words": [3]}, ["skiplist_words"]),
        *(
            ("config_sentence_transformers.json", {name: value}, [name, "MultiVectorEncoder"])
            for name, value in (("query_prefix", "[Q] "), ("document_length", 8), ("query_expansion", EXPANSION))
        ),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, ["module_input_name", "token_embeddings"]),
        ("1_Dense/config.json", {"in_features": 31}, ["in_features", "32"]),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "strategy": "max"}}, ["strategy"]),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "length": 0}}, ["length"]),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "length": 101}}, ["length", "100"]),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "attend": 1}}, ["attend"]),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "token": "[NEW]"}}, ["token"]),
        (
            "sentence_bert_config.json",
            {"query_expansion": {**EXPANSION, "token": "[SEP]"}},
            ["attend", "special token"],
        ),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "new": 1}}, ["query_expansion"]),
        ("sentence_bert_config.json", {"document_length": 3}, ["a document have 3 tokens", "at least 4"]),
        (
            "sentence_bert_config.json",
            {"query_expansion": {**EXPANSION, "length": 2}},
            ["a query have 2", "at least 4"],
        ),
        ("sentence_bert_config.json", {"query_expansion": {**EXPANSION, "token": 5}}, ["token 5"]),
        ("config_sentence_transformers.json", {"model_type": "ColBERT"}, ["model_type"]),
        ("tokenizer_config.json", {"padding_side": "left"}, ["query_expansion", "left"]),
    ],
)
def test_a_setting_that_the_export_cannot_apply_is_named(
    file: str, changes: dict[str, Any], facts: list[str], model: Path
) -> None:
    path = model / file
    before = path.read_text()
    edit_json(path, **changes)
    try:
        assert_checkpoint_refused(model, *facts)
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"family": "DebertaV2"}, ["attend"]),
        ({"family": "DebertaV2", "relative_attention": False}, ["attend"]),
        ({"family": "Deberta", "relative_attention": False}, ["attend"]),
        ({"family": "ModernBert"}, ["window", "at most 5"]),
        ({"family": "Bart"}, ["decoder"]),
        # A text that ends with the mask would lose the mask.
        ({"ends": ""}, ["special token"]),
    ],
)
def test_masks_that_graphs_would_compute_otherwise_are_refused(
    settings: dict[str, Any], facts: list[str], tmp_path: Path
) -> None:
    save_multi_vector_encoder(tmp_path / "model", **settings)
    assert_checkpoint_refused(tmp_path / "model", "query_expansion", *facts)


def test_lengths_of_tasks_replace_the_limit_of_texts(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    lengths = {"max_seq_length": 16, "query_length": 30, "document_length": 40, "query_expansion": None}
    edit_json(folder / "sentence_bert_config.json", **lengths)
    # Old versions name the file after the architecture.
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    loaded = read_checkpoint(folder)
    assert loaded.text is not None
    assert loaded.text.max_tokens == 40
    assert {each.name: each.max_tokens for each in loaded.text.prompts} == {"query": 30, "document": 0}
    assert_equal_vectors(loaded, folder)


def test_modules_without_names_transform_the_rows(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    dense = json.loads((folder / "1_Dense" / "config.json").read_text())
    write_json(folder / "1_Dense" / "config.json", {k: v for k, v in dense.items() if not k.startswith("module")})
    edit_json(folder / "3_Normalize" / "config.json", module_output_name=None)
    assert_equal_vectors(read_checkpoint(folder), folder)
    write_json(folder / "3_Normalize" / "config.json", {})
    assert_checkpoint_refused(folder, "module_input_name", "token_embeddings")


@pytest.mark.parametrize("choice", [{"pooling": Pooling.MEAN}, {"sparse": True}])
def test_a_pooling_of_the_caller_is_refused(choice: dict[str, Any], model: Path) -> None:
    with pytest.raises(CheckpointError, match="leave the pooling out"):
        read_checkpoint(model, **choice)


def test_the_choice_of_no_pooling_is_that_of_the_files(model: Path) -> None:
    assert read_checkpoint(model, Pooling.NONE).encoder.config == read_checkpoint(model).encoder.config


def test_a_model_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert_checkpoint_refused(tmp_path / "model", "tokenizer.json")


def test_checkpoints_of_other_code_name_the_one_that_converts_them(tmp_path: Path) -> None:
    save_bert(tmp_path)
    edit_json(tmp_path / "config.json", architectures=["HF_ColBERT"])
    assert_checkpoint_refused(tmp_path, "HF_ColBERT", "MultiVectorEncoder")


@pytest.mark.parametrize("kind", ["pylate.models.Dense.Dense", "sentence_transformers.base.modules.other.Other"])
def test_other_modules_are_named(kind: str, model: Path, tmp_path: Path) -> None:
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": kind},
        {"idx": 2, "name": "2", "path": "2_M", "type": "sentence_transformers.multi_vector_encoder.M.MultiVectorMask"},
    ]
    write_json(tmp_path / "modules.json", listed)
    write_json(tmp_path / "config_sentence_transformers.json", {"model_type": "MultiVectorEncoder"})
    write_json(tmp_path / "2_M" / "config.json", {})
    assert_checkpoint_refused(tmp_path, "modules.json", kind.rpartition(".")[2])


@pytest.mark.parametrize("token_dropout", [True, False])
def test_masks_of_esm_that_no_token_attends_to_are_refused(token_dropout: bool, tmp_path: Path) -> None:
    save_multi_vector_encoder(tmp_path / "model", "Esm", token_dropout=token_dropout)
    assert_checkpoint_refused(tmp_path / "model", "query_expansion", "attend false")
