"""Files that are missing, damaged or of another form than they should be: each is refused in one sentence naming it."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoint_json import CheckpointError
from headwaiter_export.checkpoints import read_checkpoint
from tests.checkpoints import save_bert, write_json
from tests.export.helpers import edit_json

WHOLE = "it must be a whole number from 1 to"
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"


@pytest.mark.parametrize("file", ["config.json", "modules.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_named(file: str, folder: Path) -> None:
    (folder / file).write_bytes(b"\x00")
    with pytest.raises(CheckpointError, match=file):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_missing_file_is_named(file: str, folder: Path) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=Path(file).name):
        read_checkpoint(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is no folder"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_missing_setting_is_named(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    del settings["hidden_size"]
    write_json(folder / "config.json", settings)
    with pytest.raises(CheckpointError, match=r"config\.json has no hidden_size"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "config_sentence_transformers.json",
    ],
)
def test_settings_must_be_an_object(file: str, folder: Path) -> None:
    write_json(folder / file, [])
    with pytest.raises(CheckpointError, match=f"{file} is no JSON object"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "field", "value", "complaint"),
    [
        ("config.json", "hidden_size", "x", WHOLE),
        ("config.json", "hidden_size", None, WHOLE),
        ("config.json", "vocab_size", 10**30, WHOLE),
        ("config.json", "intermediate_size", 2.5, WHOLE),
        ("config.json", "num_attention_heads", 0, WHOLE),
        ("config.json", "max_position_embeddings", -64, WHOLE),
        ("config.json", "model_type", {}, "the known ones are bert"),
        ("config.json", "hidden_act", [], "the known ones are gelu"),
        ("config.json", "architectures", [1], "it must be a list of texts"),
        ("sentence_bert_config.json", "max_seq_length", "x", "it must be a number, 1 or more"),
        ("sentence_bert_config.json", "max_seq_length", -1, "it must be a number, 1 or more"),
    ],
)
def test_a_field_of_another_kind_is_named_with_what_would_be_right(
    file: str, field: str, value: Any, complaint: str, folder: Path
) -> None:
    edit_json(folder / file, **{field: value})
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    assert f"{file} has {field} {value!r}: {complaint}" in str(error.value)


@pytest.mark.parametrize(
    ("file", "settings", "complaint"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ["mean"]}, r"pooling_mode \['mean'\]: the known ones are"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query", "prompts": ["query: "]},
            "prompts .*: it must be an object of texts",
        ),
    ],
)
def test_settings_of_sentence_transformers_of_another_kind_are_named(
    file: str, settings: dict[str, Any], complaint: str, folder: Path
) -> None:
    write_json(folder / file, settings)
    with pytest.raises(CheckpointError, match=f"{file} has {complaint}"):
        read_checkpoint(folder)


@pytest.mark.parametrize("value", [None, "1", -1])
def test_positions_that_follow_padding_need_its_id(value: Any, folder: Path) -> None:
    edit_json(folder / "config.json", model_type="roberta", pad_token_id=value)
    with pytest.raises(CheckpointError, match=f"pad_token_id {value!r}: it must be a whole number from 0 to"):
        read_checkpoint(folder)


def test_more_layers_than_tensors_are_refused_before_they_are_built(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=10**7)
    with pytest.raises(CheckpointError, match=r"config\.json has 10000000 layers, and the checkpoint \d+ tensors"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "modules", [{}, ["Transformer"], [{"type": "Transformer"}], [{"type": "Transformer", "path": None}]]
)
def test_modules_must_have_a_type_and_a_path(modules: Any, folder: Path) -> None:
    write_json(folder / "modules.json", modules)
    with pytest.raises(CheckpointError, match=r"modules\.json is no list of modules with a type and a path"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ([], "is no JSON object"),
        ({}, "has no weight_map"),
        ({"weight_map": ["x"]}, "has weight_map .*: it must be an object of texts"),
        ({"weight_map": {"x": "model-1.safetensors"}}, r"model-1\.safetensors is missing"),
    ],
)
def test_an_index_that_leads_to_no_shards_is_refused(index: Any, complaint: str, tmp_path: Path) -> None:
    save_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_json(tmp_path / "model.safetensors.index.json", index)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.zeros(()), r"is \[\]: by config.json it is \[1, 32\]"),
        (torch.zeros(0, 32), r"is \[0, 32\]: by config.json it is \[1, 32\]"),
        (torch.zeros(2, 16), r"is \[2, 16\]: by config.json it is \[2, 32\]"),
        (torch.zeros(2, 32, dtype=torch.int8), r"is torch\.int8: only floating point is known"),
    ],
)
def test_a_table_of_token_types_that_cannot_be_added_is_refused(
    tensor: torch.Tensor, complaint: str, folder: Path
) -> None:
    path = folder / "model.safetensors"
    safetensors.torch.save_file({**safetensors.torch.load_file(path), TOKEN_TYPES: tensor}, path)
    with pytest.raises(CheckpointError, match=f"tensor {TOKEN_TYPES} {complaint}"):
        read_checkpoint(folder)


def test_a_tokenizer_without_tokens_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    edit_json(path, added_tokens=[], model={**json.loads(path.read_text())["model"], "vocab": {}})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has no tokens"):
        read_checkpoint(folder)
