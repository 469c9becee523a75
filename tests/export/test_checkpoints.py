"""Checkpoints give the answers that `transformers` gives; what we cannot reproduce is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers

from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.checkpoint_json import CheckpointError
from headwaiter_export.checkpoints import Checkpoint, read_checkpoint
from headwaiter_export.config import Pooling, Prompt
from tests.checkpoints import (
    VOCABULARY,
    bert_hidden,
    randomize,
    save_bert,
    save_sentence_transformer,
    save_tokenizer,
    write_json,
)
from tests.export.helpers import assert_close, edit_json

Tensors = dict[str, torch.Tensor]


def check(checkpoint: Checkpoint, model: transformers.PreTrainedModel, reserved: int = 0) -> None:
    """Compare hidden rows at edge lengths, over the whole vocabulary but ids that a family reserves."""
    config = checkpoint.encoder.config
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, config.max_tokens):
        ids = rng.integers(reserved, config.vocabulary_size, n)
        with torch.inference_mode():
            _, hidden = checkpoint.encoder(torch.from_numpy(ids), SingleSequence(n))
        assert_close(hidden.numpy(), bert_hidden(model, ids))


def edit_tensors(path: Path, edit: Callable[[Tensors], Tensors]) -> None:
    tensors = edit(safetensors.torch.load_file(path))
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_bert_gives_the_answers_of_transformers(activation: str, tmp_path: Path) -> None:
    model = save_bert(tmp_path, hidden_act=activation)
    check(read_checkpoint(tmp_path), model)


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert"])
def test_roberta_gives_the_answers_of_transformers_at_positions_after_padding(family: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=60,
        hidden_size=32,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=18,
        pad_token_id=1,
    )
    model = getattr(transformers, f"{family}Model")(config).eval()
    randomize(model)
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.encoder.config.max_tokens == 16
    check(checkpoint, model, reserved=2)


def test_distilbert_gives_the_answers_of_transformers(tmp_path: Path) -> None:
    config = transformers.DistilBertConfig(
        vocab_size=60, dim=32, n_heads=4, n_layers=2, hidden_dim=64, max_position_embeddings=16
    )
    model = transformers.DistilBertModel(config).eval()
    randomize(model)
    model.save_pretrained(tmp_path)
    check(read_checkpoint(tmp_path), model)


def test_a_language_modelling_head_is_left_aside(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=64
    )
    model = transformers.BertForMaskedLM(config).eval()
    randomize(model)
    model.save_pretrained(tmp_path)
    check(read_checkpoint(tmp_path), model.bert)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    check(read_checkpoint(tmp_path / "shards"), model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = save_bert(tmp_path).to(dtype)
    model.save_pretrained(tmp_path)
    check(read_checkpoint(tmp_path), model.float())


def test_names_of_norms_from_tensorflow_are_understood(tmp_path: Path) -> None:
    model = save_bert(tmp_path)

    def rename(tensors: Tensors) -> Tensors:
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in names.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        return tensors

    edit_tensors(tmp_path / "model.safetensors", rename)
    check(read_checkpoint(tmp_path), model)


def test_both_maxima_of_a_sentence_transformer_are_kept(text_checkpoint: Path) -> None:
    checkpoint = read_checkpoint(text_checkpoint)
    assert checkpoint.text is not None
    assert (checkpoint.encoder.config.max_tokens, checkpoint.text.max_tokens) == (64, 32)


@pytest.mark.parametrize(
    ("limit", "expected"), [({"model_max_length": 20}, 20), ({"model_max_length": int(1e30)}, 64), ({}, 64)]
)
def test_the_text_maximum_of_a_plain_checkpoint_is_its_tokenizers_or_its_positions(
    limit: dict[str, int], expected: int, tmp_path: Path
) -> None:
    save_bert(tmp_path)
    save_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", limit)
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == expected


def test_the_tokenizer_neither_truncates_nor_pads(text_checkpoint: Path) -> None:
    text = read_checkpoint(text_checkpoint).text
    assert text is not None
    tokenizer = tokenizers.Tokenizer.from_str(text.tokenizer)
    assert len(tokenizer.encode("bread").ids) == 3
    assert len(tokenizer.encode("bread " * 50).ids) == 52


def test_a_checkpoint_without_a_tokenizer_takes_no_text(tmp_path: Path) -> None:
    save_bert(tmp_path)
    assert read_checkpoint(tmp_path).text is None


def test_a_plain_checkpoint_is_pooled_by_the_mean_unless_asked_otherwise(tmp_path: Path) -> None:
    save_bert(tmp_path)
    own = read_checkpoint(tmp_path).encoder.config
    asked = read_checkpoint(tmp_path, Pooling.CLS, normalize=True).encoder.config
    assert (own.pooling, own.normalize) == (Pooling.MEAN, False)
    assert (asked.pooling, asked.normalize) == (Pooling.CLS, True)


def test_without_pooling_there_is_nothing_to_normalise(text_checkpoint: Path) -> None:
    config = read_checkpoint(text_checkpoint, Pooling.NONE).encoder.config
    assert (config.pooling, config.normalize) == (Pooling.NONE, False)


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_max_tokens": True, "include_prompt": True}, Pooling.MAX),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, Pooling.MEAN),
    ],
)
def test_the_pooling_of_a_sentence_transformer_is_taken(
    settings: dict[str, Any], pooling: Pooling, folder: Path
) -> None:
    save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
    write_json(folder / "1_Pooling" / "config.json", settings)
    config = read_checkpoint(folder).encoder.config
    assert (config.pooling, config.normalize) == (pooling, False)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"architectures": ["BertForSequenceClassification"]}, "architecture BertForSequenceClassification"),
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"num_attention_heads": 5}, "heads is 5, which does not divide d_model 32"),
        ({"num_hidden_layers": 3}, "no tensor encoder.layer.2.attention.self.query.weight"),
        ({"num_hidden_layers": 1}, "a tensor encoder.layer.1."),
        ({"intermediate_size": 48}, r"intermediate.dense.weight is \[64, 32\]: by config.json it is \[48, 32\]"),
    ],
)
def test_settings_that_we_cannot_reproduce_are_refused_by_name(
    changes: dict[str, Any], complaint: str, folder: Path
) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(folder)


def test_a_classification_head_is_refused_by_its_tensor(folder: Path) -> None:
    edit_tensors(folder / "model.safetensors", lambda tensors: {**tensors, "classifier.weight": torch.zeros(2, 32)})
    with pytest.raises(CheckpointError, match=r"a tensor classifier\.weight"):
        read_checkpoint(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights, which can run code"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("modules", "complaint"),
    [
        (("Transformer", "Pooling", "Dense"), "a module Dense"),
        (("Transformer", "Normalize"), "lists Transformer, Normalize"),
    ],
)
def test_further_modules_of_a_sentence_transformer_are_refused_by_name(
    modules: tuple[str, ...], complaint: str, folder: Path
) -> None:
    save_sentence_transformer(folder, modules=modules)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(folder)


@pytest.mark.parametrize("default", [None, "query"])
@pytest.mark.parametrize("pooled", [True, False])
def test_prompts_are_taken_with_their_tokens_and_what_pooling_makes_of_them(
    default: str | None, pooled: bool, folder: Path
) -> None:
    prompts = {"query": "please: ", "document": None}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
    edit_json(folder / "1_Pooling" / "config.json", include_prompt=pooled)
    text = read_checkpoint(folder).text
    assert text is not None
    # [CLS], please and [UNK] stand before the text's own tokens.
    assert text.prompts == (Prompt("query", "please: ", 3), Prompt("document", "", 0))
    assert (text.default_prompt, text.pooling_skips_prompt) == (default or "", not pooled)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"prompts": {"query": "a"}, "default_prompt_name": "passage"}, "'passage': the known ones are query"),
        ({"prompts": {"query": 1}}, "prompts .*: it must be an object of texts"),
        ({"prompts": {"query": "rain " * 30}}, "the prompt 'query' has 32 tokens, .* at most 32: nothing is left"),
    ],
)
def test_prompts_that_no_text_can_have_are_refused(settings: dict[str, Any], complaint: str, folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", settings)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "pools by weightedmean_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "pools by cls_token and max_tokens"),
        ({}, "has no pooling_mode"),
    ],
)
def test_a_pooling_we_do_not_have_is_refused_by_name(settings: dict[str, Any], complaint: str, folder: Path) -> None:
    write_json(folder / "1_Pooling" / "config.json", settings)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(folder)


def test_a_tokenizer_of_more_ids_than_the_model_knows_is_refused(folder: Path) -> None:
    save_bert(folder, vocab_size=len(VOCABULARY) - 1)
    with pytest.raises(CheckpointError, match=f"gives ids up to {len(VOCABULARY) - 1}, and the model knows"):
        read_checkpoint(folder)


def test_lower_casing_outside_of_the_tokenizer_is_refused(folder: Path) -> None:
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(CheckpointError, match="do_lower_case"):
        read_checkpoint(folder)


def test_the_text_maximum_is_found_under_any_architecture_s_name(folder: Path) -> None:
    limit = _text_maximum(folder)
    assert limit < read_checkpoint(folder).encoder.config.max_tokens
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    assert _text_maximum(folder) == limit


def _text_maximum(folder: Path) -> int:
    text = read_checkpoint(folder).text
    assert text is not None
    return text.max_tokens
