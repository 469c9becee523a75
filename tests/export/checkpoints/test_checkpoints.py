"""Checkpoints give the same results as in `transformers`; unsupported settings are errors that name the setting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.texts import Prompt
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.reference import run_in_pytorch
from tests.support.checkpoints import (
    VOCABULARY,
    save_bert,
    save_sentence_transformer,
    write_json,
)
from tests.support.export.family_checkpoints import assert_equals_transformers
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, changed_tensors, edit_json, token_ids

LENGTHS = (1, 2, 3, 64)


def test_shards_are_read_as_one_checkpoint(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert_equals_transformers(read_checkpoint(tmp_path / "shards").encoder, model, LENGTHS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_other_precisions_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = save_bert(tmp_path).to(dtype)
    model.save_pretrained(tmp_path)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model.float(), LENGTHS)


def test_tensorflow_names_of_norms_are_accepted(tmp_path: Path) -> None:
    model = save_bert(tmp_path)
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    with changed_tensors(tmp_path) as tensors:
        for new in [name for name in tensors if name.endswith(tuple(names))]:
            module, _, kind = new.rpartition("LayerNorm")
            tensors[module + names["LayerNorm" + kind]] = tensors.pop(new)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, LENGTHS)


def test_the_tokenizer_neither_truncates_nor_pads(text_checkpoint: Path) -> None:
    found = token_ids(read_checkpoint(text_checkpoint), ["bread", "bread " * 50])
    assert [len(each) for each in found] == [3, 52]


def test_a_checkpoint_without_a_tokenizer_accepts_no_texts(tmp_path: Path) -> None:
    save_bert(tmp_path)
    assert read_checkpoint(tmp_path).text is None


def test_a_plain_checkpoint_is_pooled_by_the_mean_by_default(tmp_path: Path) -> None:
    save_bert(tmp_path)
    default = read_checkpoint(tmp_path).encoder.config
    chosen = read_checkpoint(tmp_path, Pooling.CLS, normalize=True).encoder.config
    assert (default.pooling, default.normalize) == (Pooling.MEAN, False)
    assert (chosen.pooling, chosen.normalize) == (Pooling.CLS, True)


def test_without_pooling_nothing_is_normalized(text_checkpoint: Path) -> None:
    config = read_checkpoint(text_checkpoint, Pooling.NONE).encoder.config
    assert (config.pooling, config.normalize) == (Pooling.NONE, False)


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_max_tokens": True, "include_prompt": True}, Pooling.MAX),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode_weightedmean_tokens": True}, Pooling.WEIGHTED_MEAN),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, Pooling.MEAN_SQRT_LEN),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, Pooling.MEAN),
        ({"pooling_mode": "weightedmean"}, Pooling.WEIGHTED_MEAN),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, Pooling.MEAN_SQRT_LEN),
        ({"pooling_mode": "cls", "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode": ["max"]}, Pooling.MAX),
    ],
)
def test_the_pooling_of_a_sentence_transformer_is_used(
    settings: dict[str, Any], pooling: Pooling, folder: Path
) -> None:
    save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
    write_json(folder / "1_Pooling" / "config.json", settings)
    config = read_checkpoint(folder).encoder.config
    assert (config.pooling, config.concatenated, config.normalize) == (pooling, (), False)


@pytest.mark.parametrize("default", [None, "query"])
@pytest.mark.parametrize("pooled", [True, False])
def test_prompts_are_read_with_their_tokens_and_their_pooling(default: str | None, pooled: bool, folder: Path) -> None:
    prompts = {"query": "please: ", "document": None}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
    edit_json(folder / "1_Pooling" / "config.json", include_prompt=pooled)
    text = read_checkpoint(folder).text
    assert text is not None
    # The tokens before the text are [CLS], please and [UNK].
    assert text.prompts == (Prompt("query", "please: ", 3), Prompt("document", "", 0))
    assert (text.default_prompt, text.pooling_skips_prompt) == (default or "", not pooled)


def test_an_empty_prompt_fits_where_only_special_tokens_fit(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    edit_json(folder / "sentence_bert_config.json", max_seq_length=2)
    prompts = {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}
    write_json(folder / "config_sentence_transformers.json", prompts)
    loaded = read_checkpoint(folder)
    assert loaded.text is not None
    assert (loaded.text.max_tokens, [each.tokens for each in loaded.text.prompts]) == (2, [0, 0])
    expected = SentenceTransformer(str(folder), device="cpu").encode(["the bread"], prompt_name="query")
    (outputs,) = run_in_pytorch(loaded.encoder, token_ids(loaded, [""]))
    assert_close(outputs.pooled, expected)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "please: "}})
    assert_checkpoint_refused(folder, "prompt 'query' has 4 tokens", "at most 2", "max_seq_length")


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"pooling_mode_attention_tokens": True}, ["1_Pooling/config.json", "attention_tokens", "weightedmean"]),
        ({"pooling_mode": ["cls", "median"]}, ["1_Pooling/config.json", "pooling_mode ['cls', 'median']", "cls, max"]),
        ({"pooling_mode": []}, ["1_Pooling/config.json", "pooling_mode []"]),
        ({"pooling_mode": ["cls", "mean"], "pooling_mode_mean_tokens": True}, ["the flags name mean"]),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ["pooling_mode 'cls'", "the flags name mean"]),
        ({}, ["1_Pooling/config.json", "pooling_mode"]),
    ],
)
def test_an_unsupported_pooling_is_named(settings: dict[str, Any], facts: list[str], folder: Path) -> None:
    write_json(folder / "1_Pooling" / "config.json", settings)
    assert_checkpoint_refused(folder, *facts)


def test_a_tokenizer_with_ids_outside_the_vocabulary_is_refused(folder: Path) -> None:
    save_bert(folder, vocab_size=len(VOCABULARY) - 1)
    assert_checkpoint_refused(folder, "tokenizer.json", f"token id {len(VOCABULARY) - 1}", f"{len(VOCABULARY) - 1} ids")


@pytest.mark.exhaustive
def test_a_checkpoint_that_sentence_transformers_saves_again_is_the_same(
    text_checkpoint: Path, folder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "saved"))
    saved, original = read_checkpoint(tmp_path / "saved"), read_checkpoint(text_checkpoint)
    assert saved.text is not None
    assert original.text is not None
    assert (saved.encoder.config, saved.text.max_tokens) == (original.encoder.config, original.text.max_tokens)
    assert {prompt.name: prompt for prompt in saved.text.prompts} == {each.name: each for each in original.text.prompts}
    texts = ["The bread is [SEP] fresh", "ΑΒΓ 雨"]
    for one, other in zip(token_ids(saved, texts), token_ids(original, texts), strict=True):
        np.testing.assert_array_equal(one, other)
