"""An error names the file, field or tensor of a checkpoint that is missing, damaged, malformed or not supported."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.checkpoints import save_bert, write_json
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import assert_checkpoint_refused, assert_mentions, changed_tensors, edit_json

TOKEN_TYPES = "embeddings.token_type_embeddings.weight"


def test_a_folder_of_an_adapter_alone_is_refused_as_one(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {})
    assert_checkpoint_refused(tmp_path, "adapter_config.json", "merge")


@pytest.mark.parametrize("file", ["config.json", "modules.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_named(file: str, folder: Path) -> None:
    (folder / file).write_bytes(b"\x00")
    assert_checkpoint_refused(folder, file)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_missing_file_is_named(file: str, folder: Path) -> None:
    (folder / file).unlink()
    assert_checkpoint_refused(folder, Path(file).name)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "1_Pooling/config.json"])
def test_a_pipe_is_refused_and_not_waited_for(file: str, folder: Path) -> None:
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert_checkpoint_refused(folder, Path(file).name)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "model.safetensors"])
def test_a_file_that_the_user_must_not_read_is_named(file: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may read all files.
    open_ = io.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, Path) and path == folder / file:
            raise PermissionError(13, "Permission denied", str(path))
        return open_(path, *arguments, **options)

    monkeypatch.setattr(io, "open", refuse)
    assert_checkpoint_refused(folder, file, "Permission denied")


@pytest.mark.parametrize("name", ["embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"])
def test_two_tensors_for_one_weight_are_refused_unless_they_are_equal(name: str, tmp_path: Path) -> None:
    save_bert(tmp_path)
    with changed_tensors(tmp_path) as tensors:
        tensors[name] = tensors["embeddings.LayerNorm.weight"].clone()
    read_checkpoint(tmp_path)
    with changed_tensors(tmp_path) as tensors:
        tensors[name] *= 2
    assert_checkpoint_refused(tmp_path, "two tensors for embeddings.LayerNorm.weight")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert_checkpoint_refused(tmp_path / "nowhere", "nowhere")


def test_a_bundle_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert_checkpoint_refused(tmp_path, "is a bundle", f"headwaiter-server {tmp_path}")


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
def test_a_json_file_must_be_an_object(file: str, folder: Path) -> None:
    write_json(folder / file, [])
    assert_checkpoint_refused(folder, file, "list", "object")


@pytest.mark.parametrize(
    ("file", "changes", "facts"),
    [
        ("config.json", {"auto_map": {"AutoModel": "code.Model"}}, ["auto_map"]),
        ("config.json", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ("config.json", {"configuration_files": ["config.5.0.0.json"]}, ["configuration_files"]),
        ("config.json", {"transformers_weights": "other.safetensors"}, ["transformers_weights 'other.safetensors'"]),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, ["transformer_task 'fill-mask'", "'feature-"]),
        ("sentence_bert_config.json", {"processor_kwargs": {"model_max_length": 8}}, ["processor_kwargs"]),
        ("sentence_bert_config.json", {"module_output_name": "x"}, ["module_output_name 'x'", "token_embeddings"]),
        ("sentence_bert_config.json", {"new_field": 1}, ["new_field 1", "does not know"]),
        ("1_Pooling/config.json", {"new_field": 1}, ["new_field 1", "does not know"]),
        (
            "1_Pooling/config.json",
            {"pooling_mode": [["mean"]], "pooling_mode_mean_tokens": False},
            ["pooling_mode", "cls, max"],
        ),
        ("2_Normalize/config.json", {"module_input_name": "x"}, ["module_input_name 'x'", "sentence_embedding"]),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, ["truncate_dim 0", "from 1 to"]),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, ["model_type 'SparseEncoder'"]),
        ("config_sentence_transformers.json", {"model_type": None}, ["model_type None", "SentenceTransformer"]),
        ("config.json", {"model_type": "gpt2"}, ["model_type", "'gpt2'"]),
        ("config.json", {"hidden_act": "mish"}, ["hidden_act", "'mish'"]),
        ("config.json", {"num_attention_heads": 5}, ["heads is 5", "d_model 32"]),
        ("config.json", {"num_hidden_layers": 3}, ["encoder.layer.2.attention.self.query.weight"]),
        ("config.json", {"num_hidden_layers": 1}, ["encoder.layer.1."]),
        ("config.json", {"intermediate_size": 48}, ["intermediate.dense.weight", "[64, 32]", "[48, 32]"]),
        ("config.json", {"vocab_size": 10**30}, ["vocab_size 1000000000000000000000000000000", "from 1 to"]),
        ("config.json", {"model_type": {}}, ["model_type {}", "bert"]),
        ("config.json", {"architectures": [1]}, ["architectures [1]", "list of strings"]),
        ("sentence_bert_config.json", {"max_seq_length": -1}, ["max_seq_length -1", "at least 1"]),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "a"}, "default_prompt_name": "passage"},
            ["default_prompt_name", "'passage'", "query"],
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query", "prompts": ["query: "]},
            ["prompts", "['query: ']", "object"],
        ),
        ("sentence_bert_config.json", {"do_lower_case": 1}, ["do_lower_case 1", "true or false"]),
        # Positions after padding need the id of the padding token.
        *(
            ("config.json", {"model_type": "roberta", "pad_token_id": value}, [f"pad_token_id {value!r}", "from 0 to"])
            for value in (None, "1", -1)
        ),
    ],
)
def test_a_setting_that_would_change_results_is_refused_by_name(
    file: str, changes: dict[str, Any], facts: list[str], folder: Path
) -> None:
    content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    write_json(folder / file, {**content, **changes})
    assert_checkpoint_refused(folder, file, *facts)


def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(folder: Path) -> None:
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "rain " * 30})
    assert_checkpoint_refused(folder, "'query' has 32 tokens", "at most 32")


def test_more_layers_than_tensors_are_refused_before_the_layers_are_built(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=10**7)
    tensors = len(safetensors.torch.load_file(folder / "model.safetensors"))
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    (held,) = re.findall(r"(\d+) tensors", str(error.value))
    assert 0 < int(held) <= tensors
    assert_mentions(error.value, "config.json", "10000000 layers")


@pytest.mark.parametrize(
    "modules", [{}, ["Transformer"], [{"type": "Transformer"}], [{"type": "Transformer", "path": None}]]
)
def test_modules_must_have_a_type_and_a_path(modules: Any, folder: Path) -> None:
    write_json(folder / "modules.json", modules)
    assert_checkpoint_refused(folder, "modules.json", "type", "path")


def test_a_module_with_code_of_its_own_is_refused(folder: Path) -> None:
    modules = (folder / "modules.json").read_text().replace("sentence_transformers.models", "custom_st", 1)
    (folder / "modules.json").write_text(modules)
    assert_checkpoint_refused(folder, "modules.json", "'custom_st.Transformer'")


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../..", ".."])
@pytest.mark.parametrize("module", [0, 1])
def test_a_module_outside_the_folder_is_refused(module: int, path: str, folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[module]["path"] = path
    write_json(folder / "modules.json", modules)
    assert_checkpoint_refused(folder, "modules.json", repr(path), "outside")


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_shard_outside_the_folder_is_refused(is_absolute: bool, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    name = str(folder.parent / "other.safetensors") if is_absolute else "../other.safetensors"
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"x": name}})
    assert_checkpoint_refused(folder, "model.safetensors.index.json", repr(name), "outside")


def test_links_to_files_outside_the_folder_are_followed_as_in_the_cache_of_hugging_face(folder: Path) -> None:
    expected = read_checkpoint(folder).encoder.state_dict()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).rename(folder.parent / f"blob-{name}")
        (folder / name).symlink_to(Path("..", f"blob-{name}"))
    found = read_checkpoint(folder).encoder.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("index", "facts"),
    [
        ([], ["model.safetensors.index.json", "list", "object"]),
        ({}, ["model.safetensors.index.json", "weight_map"]),
        ({"weight_map": ["x"]}, ["model.safetensors.index.json", "weight_map ['x']", "object"]),
        ({"weight_map": {"x": "model-1.safetensors"}}, ["model-1.safetensors"]),
    ],
)
def test_an_index_without_shards_is_refused(index: Any, facts: list[str], tmp_path: Path) -> None:
    save_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_json(tmp_path / "model.safetensors.index.json", index)
    assert_checkpoint_refused(tmp_path, *facts)


@pytest.mark.parametrize(
    ("tensor", "facts"),
    [
        (torch.zeros(()), ["[]", "[1, 32]"]),
        (torch.zeros(0, 32), ["[0, 32]", "[1, 32]"]),
        (torch.zeros(2, 16), ["[2, 16]", "[2, 32]"]),
        (torch.zeros(2, 32, dtype=torch.int8), ["torch.int8", "float32"]),
    ],
)
def test_a_malformed_table_of_token_types_is_refused(tensor: torch.Tensor, facts: list[str], folder: Path) -> None:
    with changed_tensors(folder) as tensors:
        tensors[TOKEN_TYPES] = tensor
    assert_checkpoint_refused(folder, TOKEN_TYPES, *facts)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.bool])
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("Bert", "encoder.layer.0.output.dense.weight"),
        ("Bert", "encoder.layer.0.output.LayerNorm.bias"),
        ("T5", "encoder.block.0.layer.0.SelfAttention.q.weight"),
        ("Gemma3", "layers.0.input_layernorm.weight"),
    ],
)
def test_a_tensor_of_another_type_is_refused_by_name(
    name: str, tensor: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_example(tmp_path, name)
    with changed_tensors(tmp_path) as tensors:
        tensors[tensor] = tensors[tensor].to(dtype)
    assert_checkpoint_refused(tmp_path, tensor, str(dtype), "bfloat16")


def test_a_tokenizer_without_tokens_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    edit_json(path, added_tokens=[], model={**json.loads(path.read_text())["model"], "vocab": {}})
    assert_checkpoint_refused(folder, "tokenizer.json", "no tokens")
