"""A setting of a checkpoint that changes results is applied, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.checkpoints import write_json
from tests.export.helpers import assert_checkpoint_refused


@pytest.mark.parametrize(
    ("file", "settings", "facts"),
    [
        ("config.json", {"auto_map": {"AutoModel": "code.Model"}}, ["auto_map"]),
        ("config.json", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ("config.json", {"configuration_files": ["config.5.0.0.json"]}, ["configuration_files"]),
        ("config.json", {"transformers_weights": "other.safetensors"}, ["transformers_weights 'other.safetensors'"]),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, ["transformer_task 'fill-mask'", "'feature-"]),
        ("sentence_bert_config.json", {"processor_kwargs": {"model_max_length": 8}}, ["processor_kwargs"]),
        ("sentence_bert_config.json", {"tokenizer_args": {"do_lower_case": False}}, ["tokenizer_args"]),
        ("sentence_bert_config.json", {"query_length": 8}, ["query_length 8"]),
        ("sentence_bert_config.json", {"module_output_name": "x"}, ["module_output_name 'x'", "token_embeddings"]),
        ("sentence_bert_config.json", {"new_field": 1}, ["new_field 1", "does not know"]),
        ("1_Pooling/config.json", {"new_field": 1}, ["new_field 1", "does not know"]),
        ("2_Normalize/config.json", {"module_input_name": "x"}, ["module_input_name 'x'", "sentence_embedding"]),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, ["truncate_dim 8"]),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, ["model_type 'SparseEncoder'"]),
        ("config_sentence_transformers.json", {"model_type": None}, ["model_type None", "SentenceTransformer"]),
        ("adapter_config.json", {}, ["adapter_config.json", "adapter"]),
    ],
)
def test_a_setting_that_would_change_results_is_not_read_past(
    file: str, settings: dict[str, Any], facts: list[str], folder: Path
) -> None:
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    write_json(path, {**(json.loads(path.read_text()) if path.is_file() else {}), **settings})
    assert_checkpoint_refused(folder, file, *facts)


def test_a_module_with_code_of_its_own_is_refused(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    write_json(folder / "modules.json", modules)
    assert_checkpoint_refused(folder, "modules.json", "'custom_st.Transformer'")


def test_the_fields_that_sentence_transformers_6_saves_are_accepted(folder: Path) -> None:
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    files = {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": forward},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True},
        "2_Normalize/config.json": {
            "module_input_name": "sentence_embedding",
            "module_output_name": "sentence_embedding",
        },
        "tokenizer_config.json": {"model_max_length": 32, "tokenizer_class": "BertTokenizer", "do_lower_case": True},
    }
    expected = read_checkpoint(folder)
    for file, content in files.items():
        write_json(folder / file, content)
    found = read_checkpoint(folder)
    assert (found.encoder.config, found.text) == (expected.encoder.config, expected.text)


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
    ids = [
        [encoding.ids for encoding in tokenizers.Tokenizer.from_str(text.tokenizer).encode_batch(texts)]
        for text in (saved.text, original.text)
    ]
    assert ids[0] == ids[1]
