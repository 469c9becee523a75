"""The export says what it takes for granted, and what it leaves out of a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import processors

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from tests.support.checkpoints import save_bert, save_sentence_transformer, save_tokenizer, save_vit, write_json
from tests.support.export.family_checkpoints import save_family
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import drop_fields, edit_json
from tests.support.export.tokenizer_folders import qwen2

NO_POOLING = (
    "the checkpoint names no pooling: mean, as usual for bert, of unit length only with --normalize; "
    "--pooling chooses another"
)
TYPES = "all tokens have type 0, one of 2 token types"
POOLER = "hidden rows do not depend on tensors pooler.…: they are left out"
T5_SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 4}


def assumptions(folder: Path, pooling: Pooling | None = None) -> list[str]:
    return list(read_checkpoint(folder, pooling).assumptions)


def test_a_plain_checkpoint_without_a_tokenizer(tmp_path: Path) -> None:
    save_bert(tmp_path)
    missing = (
        f"{tmp_path} has neither tokenizer.json nor a known vocab.txt: the bundle will accept token ids, but no texts"
    )
    assert assumptions(tmp_path) == [NO_POOLING, TYPES, missing, POOLER]
    assert assumptions(tmp_path, Pooling.CLS) == [TYPES, missing, POOLER]


@pytest.mark.parametrize(
    ("settings", "limit", "source"),
    [
        ({}, 64, "the maximum of the model"),
        ({"model_max_length": 10**30}, 64, "the maximum of the model"),
        ({"model_max_length": None, "max_len": 20}, 64, "the maximum of the model"),
        ({"model_max_length": 20}, 20, "model_max_length of tokenizer_config.json"),
        ({"max_len": 20}, 20, "max_len of tokenizer_config.json"),
        ({"model_max_length": 30, "max_len": 20}, 30, "model_max_length of tokenizer_config.json"),
    ],
)
def test_the_limit_of_texts_is_used_and_its_source_is_named(
    settings: dict[str, Any], limit: int, source: str, tmp_path: Path
) -> None:
    save_bert(tmp_path, type_vocab_size=1)
    save_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", settings)
    loaded = read_checkpoint(tmp_path)
    assert list(loaded.assumptions) == [NO_POOLING, f"texts have at most {limit} tokens, {source}", POOLER]
    assert loaded.text is not None
    assert loaded.text.max_tokens == limit


def contradictions(folder: Path) -> list[str]:
    return [line for line in assumptions(folder, Pooling.MEAN) if "contradicts itself" in line]


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
@pytest.mark.parametrize("adds", [True, False])
def test_a_setting_of_a_special_token_that_transformers_ignores(name: str, adds: bool, tmp_path: Path) -> None:
    tokenizer = qwen2()
    token = "<|im_end|>"
    ids = [(token, tokenizer.token_to_id(token))]
    single = {"bos_token": f"{token} $A", "eos_token": f"$A {token}"}[name] if adds else "$A"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=ids)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_example(tmp_path, "Qwen3", vocab_size=tokenizer.get_vocab_size())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", name: token}
    for wanted in (None, adds, not adds):
        write_json(tmp_path / "tokenizer_config.json", {**settings, f"add_{name}": wanted})
        lines = contradictions(tmp_path)
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert (ids[0][1] in loaded("the bread")["input_ids"]) is adds
        assert len(lines) == (wanted is (not adds))
        assert all(f"add_{name} {wanted}" in line and repr(token) in line for line in lines)


def test_a_tokenizer_that_the_settings_beside_it_contradict(tmp_path: Path) -> None:
    save_bert(tmp_path)
    save_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    assert contradictions(tmp_path) == []
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    (line,) = contradictions(tmp_path)
    assert "tokenizer.json" in line


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_beside_an_index_of_other_weights(name: str, tmp_path: Path) -> None:
    save_bert(tmp_path)
    if name == "pytorch_model.bin":
        torch.save(safetensors.torch.load_file(tmp_path / "model.safetensors"), tmp_path / name)
        (tmp_path / "model.safetensors").unlink()
    assert contradictions(tmp_path) == []
    write_json(tmp_path / f"{name}.index.json", {"weight_map": {"a": "missing-00001-of-00001.safetensors"}})
    (line,) = contradictions(tmp_path)
    assert f"{name}.index.json" in line


@pytest.mark.parametrize("labels", [None, {"0": "no", "1": "yes"}])
def test_a_head(labels: dict[str, str] | None, tmp_path: Path) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification", vocab_size=100, type_vocab_size=3)
    save_tokenizer(tmp_path)
    edit_json(tmp_path / "config.json", id2label=labels)
    write_json(tmp_path / "tokenizer_config.json", {"model_input_names": ["input_ids"]})
    names = "2 named labels" if labels else "2 labels without names"
    assert assumptions(tmp_path) == [
        f"softmax turns logits into scores, for {names}",
        "without --pooling, requests of pooled vectors must name a pooling",
        "all tokens have type 0, one of 3 token types",
        "texts have at most 24 tokens, the maximum of the model",
    ]
    save_sentence_transformer(tmp_path)
    first, *_, last = assumptions(tmp_path)
    assert first == "the head of BertForSequenceClassification is left out"
    assert last == "hidden rows do not depend on tensors classifier.…, pooler.…: they are left out"


def test_a_language_model(tmp_path: Path) -> None:
    save_family(tmp_path, "T5", "ForConditionalGeneration", **T5_SIZES)
    drop_fields(tmp_path / "config.json", "n_positions")
    assert assumptions(tmp_path, Pooling.MEAN) == [
        "the head of T5ForConditionalGeneration is left out",
        "config.json has no n_positions: sequences have at most 512 tokens",
        f"{tmp_path} has neither tokenizer.json nor a known vocab.txt: the bundle will accept token ids, but no texts",
        "hidden rows do not depend on tensors decoder.…: they are left out",
    ]


def test_images_without_an_image_processor(tmp_path: Path) -> None:
    save_vit(tmp_path)
    assert assumptions(tmp_path, Pooling.CLS) == [
        "the export knows no image processor of the checkpoint: callers must prepare images",
        POOLER,
    ]


@pytest.mark.parametrize("file", ["config_setfit.json", "model_head.pkl"])
def test_a_classifier_of_setfit(file: str, tmp_path: Path) -> None:
    save_family(tmp_path, "Bert", "Model", vocab_size=100)
    save_sentence_transformer(tmp_path)
    line = "SetFit's classifier, model_head.pkl, is left out: export a module of the encoder with a linear layer"
    assert line not in assumptions(tmp_path)
    (tmp_path / file).write_bytes(b"{}")
    assert line in assumptions(tmp_path)
