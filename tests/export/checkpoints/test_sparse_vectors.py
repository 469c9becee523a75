"""A masked language model gives the sparse vectors of `sentence-transformers`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from tests.support.checkpoints import save_bert, save_sentence_transformer
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    changed_tensors,
    edit_json,
    token_ids,
)
from tests.support.export.sparse_encoder import TEXTS, expected_vectors, save_sparse_encoder
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

FAMILIES = (
    "Bert",
    "Roberta",
    "XLMRoberta",
    "XLMRobertaXL",
    "Camembert",
    "Data2VecText",
    "MPNet",
    "DistilBert",
    "ModernBert",
    "Ernie",
)


def vectors(folder: Path, **choices: Any) -> Array:
    """Return the vectors that the export gives for `TEXTS`."""
    loaded = read_checkpoint(folder, **choices)
    pooled = concatenate(run_in_pytorch(loaded.encoder, token_ids(loaded, TEXTS))).pooled
    assert pooled is not None
    return pooled


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("activation", ["relu", *exhaustive("log1p_relu")])
def test_vectors_equal_those_of_sentence_transformers(activation: str, tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path, activation)
    expected = expected_vectors(tmp_path)
    assert_close_to_scale(vectors(tmp_path), expected)
    assert 0.1 < (expected > 0).mean() < 0.9
    config = read_checkpoint(tmp_path).encoder.config
    assert config.pooling is Pooling.MAX
    assert config.pooled_width == expected.shape[1]


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_are_those_of_transformers(family: str, ties: bool, tmp_path: Path) -> None:
    model = save_example(tmp_path, family, "ForMaskedLM", tie_word_embeddings=ties)
    encoder = read_checkpoint(tmp_path, sparse=True).encoder
    rng = np.random.default_rng(0)
    for length in (1, 7, 15):
        ids = rng.integers(4, encoder.config.vocabulary_size, length)
        with torch.inference_mode():
            logits = model(torch.from_numpy(ids)[None]).logits[0]
        (outputs,) = run_in_pytorch(encoder, [ids])
        assert_close_to_scale(outputs.pooled, logits.relu().log1p().amax(0, keepdim=True).numpy())


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_modules_is_read_with_a_flag(tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path)
    expected = vectors(tmp_path)
    (tmp_path / "modules.json").unlink()
    np.testing.assert_array_equal(vectors(tmp_path, sparse=True), expected)
    with pytest.raises(CheckpointError, match="--pooling"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes", "facts"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "sum"}, ["pooling_strategy", "sum"]),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}, ["activation_function", "gelu"]),
        ("1_SpladePooling/config.json", {"other": 1}, ["other"]),
        ("config.json", {"architectures": ["BertModel"]}, ["BertModel", "ForMaskedLM"]),
        ("config.json", {"hidden_act": "tanh"}, ["hidden_act", "tanh"]),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, ["SentenceTransformer"]),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, ["transformer_task"]),
        # Without the field, sentence-transformers pools the hidden rows.
        ("sentence_bert_config.json", {"transformer_task": None}, ["transformer_task"]),
    ],
)
def test_a_setting_that_cannot_be_reproduced_is_refused(
    file: str, changes: dict[str, Any], facts: list[str], tmp_path: Path
) -> None:
    save_sparse_encoder(tmp_path)
    edit_json(tmp_path / file, **changes)
    assert_checkpoint_refused(tmp_path, *facts)


@pytest.mark.filterwarnings("ignore")
def test_a_limit_of_the_numbers_of_a_vector_is_refused(tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path)
    edit_json(tmp_path / "config_sentence_transformers.json", max_active_dims=5)
    assert {*(expected_vectors(tmp_path) > 0).sum(1)} == {5}
    assert_checkpoint_refused(tmp_path, "config_sentence_transformers.json", "max_active_dims 5")
    edit_json(tmp_path / "config_sentence_transformers.json", max_active_dims=None)
    assert (vectors(tmp_path) > 0).sum(1).min() > 5


def test_a_family_without_a_known_head_is_refused(tmp_path: Path) -> None:
    save_example(tmp_path, "Electra", "ForMaskedLM")
    with pytest.raises(CheckpointError, match="electra"):
        read_checkpoint(tmp_path, sparse=True)


def test_a_checkpoint_with_a_pooling_is_not_made_sparse(tmp_path: Path) -> None:
    save_bert(tmp_path)
    save_sentence_transformer(tmp_path)
    with pytest.raises(CheckpointError, match=r"modules\.json names the pooling mean"):
        read_checkpoint(tmp_path, sparse=True)


def test_a_sparse_checkpoint_gets_no_other_pooling(tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path)
    with pytest.raises(CheckpointError, match="the pooling cls"):
        read_checkpoint(tmp_path, Pooling.CLS)


def test_a_head_without_a_bias_has_zeros(tmp_path: Path) -> None:
    model = save_example(tmp_path, "ModernBert", "ForMaskedLM", decoder_bias=False)
    encoder = read_checkpoint(tmp_path, sparse=True).encoder
    ids = np.arange(4, 14)
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids)[None]).logits[0]
    (outputs,) = run_in_pytorch(encoder, [ids])
    assert_close_to_scale(outputs.pooled, logits.relu().log1p().amax(0, keepdim=True).numpy())


@pytest.mark.parametrize("name", ["cls.predictions.bias", "cls.predictions.transform.dense.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path)
    with changed_tensors(tmp_path) as tensors:
        del tensors[name]
    assert_checkpoint_refused(tmp_path, name)


@pytest.mark.parametrize("name", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_two_copies_that_differ_are_refused(name: str, tmp_path: Path) -> None:
    save_sparse_encoder(tmp_path)
    copy = "cls.predictions.bias" if name.endswith("bias") else "bert.embeddings.word_embeddings.weight"
    with changed_tensors(tmp_path) as tensors:
        tensors[name] = tensors[copy] + 1
    assert_checkpoint_refused(tmp_path, name)
