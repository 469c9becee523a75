"""Llama, Mistral, Qwen3 and EuroBERT checkpoints give `transformers`' hidden rows, whatever their configuration."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from tests.checkpoints import write_json
from tests.export.family_checkpoints import (
    LINEAR,
    PROPORTIONAL,
    ROPE,
    SIZES,
    assert_equals_transformers,
    assert_honoured_or_refused,
    changed_fields,
    save_family,
)
from tests.export.helpers import (
    assert_checkpoint_refused,
    edit_json,
)

WINDOW = 5
# Ids of special tokens must be ids of the vocabulary.
TOKENS = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "mask_token_id": 1}
LOCAL = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": WINDOW},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 12, **LOCAL},
    "EuroBert": {"num_key_value_heads": 2, **TOKENS},
}
OWN_VALUES: dict[str, list[Any]] = {
    # Multi-query attention, one head of keys for each head of queries, and a number that does not divide 4.
    "num_key_value_heads": [1, 4, 3],
    "sliding_window": [1, 2, 23, 24, 1000, None],
    "max_window_layers": [0, 2],
    "head_dim": [4, 16],
    "rms_norm_eps": [1e-12, 0.1],
    "rope_parameters": [ROPE, LINEAR, PROPORTIONAL],
}
REFUSED: list[Any] = ["mish", "tanh", PROPORTIONAL]
# One family in every run; the others share its code.
CHANGES = [change for name in SETTINGS for change in changed_fields(name, OWN_VALUES, every_run=name == "Qwen3")]


@pytest.mark.parametrize(("name", "field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, **{**SETTINGS[name], field: value})
    refused = value in REFUSED or (field, value) == ("num_key_value_heads", 3)
    assert_honoured_or_refused(tmp_path, model, field, refused=refused)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_hidden_rows_equal_those_of_transformers(name: str, causal: bool, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, **SETTINGS[name], is_causal=causal)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.mask == ("causal" if causal and name != "EuroBert" else "none")
    assert_equals_transformers(encoder, model, (1, 2, 3, WINDOW - 1, WINDOW, WINDOW + 1, 24))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Qwen3", "layer_types", ["full_attention"]),
        ("Qwen3", "layer_types", ["full_attention", "chunked_attention"]),
        # The second layer attends locally, but has no window.
        ("Qwen3", "use_sliding_window", False),
        ("Qwen3", "sliding_window", None),
        ("Qwen3", "sliding_window", 0),
        ("Qwen3", "use_sliding_window", "yes"),
        ("Mistral", "sliding_window", 0),
        ("Mistral", "layer_types", ["full_attention"] * 2),
        ("Llama", "num_key_value_heads", 0),
        ("Llama", "is_causal", "no"),
        ("Llama", "rope_scaling", PROPORTIONAL),
        ("Llama", "rope_parameters", {"full_attention": ROPE}),
        ("EuroBert", "attention_bias", None),
        ("EuroBert", "is_decoder", True),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    save_family(tmp_path, name, **SETTINGS[name])
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)


def test_a_checkpoint_without_optional_fields_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    model = save_family(tmp_path, "Mistral", num_attention_heads=8, num_key_value_heads=8)
    write_json(tmp_path / "config.json", {name: getattr(model.config, name) for name in ("model_type", *SIZES)})
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))


@pytest.mark.parametrize("module", ["layers.1.self_attn.k_proj", "layers.0.self_attn.q_norm"])
def test_a_tensor_of_another_shape_is_refused_by_name(module: str, tmp_path: Path) -> None:
    save_family(tmp_path, "Qwen3", **SETTINGS["Qwen3"])
    path = tmp_path / "model.safetensors"
    tensors = {**safetensors.torch.load_file(path), f"{module}.weight": torch.ones(7, 32)}
    safetensors.torch.save_file(tensors, path)
    assert_checkpoint_refused(tmp_path, f"{module}.weight")


def test_stored_frequencies_and_the_head_of_a_language_model_are_ignored(tmp_path: Path) -> None:
    model = save_family(tmp_path, "Llama", "ForCausalLM", num_key_value_heads=2)
    path = tmp_path / "model.safetensors"
    stored = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    safetensors.torch.save_file({**safetensors.torch.load_file(path), **stored}, path)
    assert_equals_transformers(read_checkpoint(tmp_path, Pooling.LAST).encoder, model.base_model, (1, 12))
