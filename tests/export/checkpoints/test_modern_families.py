"""Checkpoints of ModernBERT and its kin give the hidden rows of `transformers`, whatever their configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling, Positions
from tests.checkpoints import write_json
from tests.export.family_checkpoints import (
    LINEAR,
    PROPORTIONAL,
    ROPE,
    assert_equals_transformers,
    assert_honoured_or_refused,
    changed_fields,
    save_family,
)
from tests.export.helpers import (
    assert_checkpoint_refused,
    edit_json,
)

# Ids of special tokens must be ids of the vocabulary.
TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1) | {"pad_token_id": 0}
WINDOW = 5
MODERNBERT: dict[str, Any] = {"local_attention": 2 * WINDOW, "max_position_embeddings": 40, **TOKENS}
SETTINGS: dict[str, dict[str, Any]] = {
    "ModernBert": MODERNBERT,
    "NomicBert": {"pad_token_id": 0},
    "Gte": {"pad_token_id": 0},
    "JinaEmbeddingsV3": {"pad_token_id": 0},
}
# Other values of fields whose changed value cannot be derived from their default.
OWN_VALUES: dict[str, list[Any]] = {
    "hidden_activation": ["silu", "relu", "gelu_new", "gelu_pytorch_tanh", "mish", "tanh"],
    "classifier_activation": ["silu"],
    "classifier_dropout": [0.5],
    "local_attention": [0, 1, 2, 7, 1000],
    "norm_eps": [1e-12, 0.1],
    "layer_norm_eps": [1e-5, 0.1],
    "type_vocab_size": [1, 3],
}
ROPE_VALUES: dict[str, list[Any]] = {
    "ModernBert": [
        {"full_attention": ROPE, "sliding_attention": {**ROPE, "rope_theta": 9.0}},
        {"full_attention": LINEAR, "sliding_attention": ROPE},
        {"full_attention": ROPE, "sliding_attention": LINEAR},
        {"full_attention": PROPORTIONAL, "sliding_attention": ROPE},
    ],
    "NomicBert": [ROPE, LINEAR, PROPORTIONAL],
    "Gte": [ROPE, LINEAR, PROPORTIONAL],
    "JinaEmbeddingsV3": [ROPE, LINEAR, PROPORTIONAL],
}


# JinaEmbeddingsV3 shares its code with GTE.
CHANGES = [
    change
    for name in SETTINGS
    for change in changed_fields(
        name, OWN_VALUES | {"rope_parameters": ROPE_VALUES[name]}, every_run=name != "JinaEmbeddingsV3"
    )
]


# The changed values that the encoder lacks.
REFUSED = [
    "mish",
    "tanh",
    *(value for values in ROPE_VALUES.values() for value in values if "proportional" in str(value)),
]


@pytest.mark.parametrize(("name", "field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, **{**SETTINGS[name], field: value})
    assert_honoured_or_refused(tmp_path, model, field, refused=value in REFUSED)


@pytest.mark.parametrize("name", ["NomicBert", "Llama"])
def test_rotary_positions_equal_those_of_transformers_bit_for_bit(name: str, tmp_path: Path) -> None:
    # In float64, the angles of position 8,191 would change hidden rows by up to 2e-3 of their scale.
    model = save_family(tmp_path, name, **{**SETTINGS.get(name, {}), "max_position_embeddings": 8192})
    cosines, _ = model.rotary_emb(torch.empty(1), torch.arange(8192)[None])
    attention = read_checkpoint(tmp_path).encoder.get_submodule("layers.1.attention")
    assert torch.equal(attention.get_submodule("positions").get_buffer("cosines"), cosines[0, :, :4])


def test_a_gte_without_token_types_equals_transformers(tmp_path: Path) -> None:
    model = save_family(tmp_path, "Gte", pad_token_id=0, type_vocab_size=0)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))


@pytest.mark.parametrize("period", [1, 2, 3, 9])
def test_a_modernbert_with_the_fields_of_transformers_4_equals_transformers(period: int, tmp_path: Path) -> None:
    old: dict[str, Any] = {
        "num_hidden_layers": 4,
        "global_attn_every_n_layers": period,
        "global_rope_theta": 99.0,
        "local_rope_theta": 7.0,
    }
    model = save_family(tmp_path, "ModernBert", **MODERNBERT, **old)
    config_json = json.loads((tmp_path / "config.json").read_text())
    for field in ("layer_types", "rope_parameters"):
        del config_json[field]
    write_json(tmp_path / "config.json", {**config_json, **old})
    encoder = read_checkpoint(tmp_path).encoder
    assert (encoder.config.rotary_theta, encoder.config.local_rotary_theta) == (99.0, 7.0)
    assert_equals_transformers(encoder, model, (1, 40))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ModernBert", "head_dim", 4),
        ("ModernBert", "sliding_window", 3),
        ("ModernBert", "rope_scaling", PROPORTIONAL),
        ("ModernBert", "rope_parameters", ROPE),
        ("ModernBert", "rope_parameters", {"full_attention": {**ROPE, "partial_rotary_factor": 0.5}}),
        ("ModernBert", "rope_parameters", {"full_attention": {"rope_theta": "1"}}),
        ("ModernBert", "layer_types", ["full_attention"] * 3),
        ("ModernBert", "layer_types", ["full_attention", "chunked_attention"]),
        ("ModernBert", "norm_bias", "no"),
        ("NomicBert", "rope_scaling", {"type": "ntk", "factor": 2.0}),
        ("NomicBert", "rope_parameters", {**ROPE, "partial_rotary_factor": 0.5}),
        ("NomicBert", "head_dim", "8"),
        ("Gte", "rope_scaling", {"type": "ntk", "factor": 8.0}),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    save_family(tmp_path, name, **SETTINGS[name])
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field if "rope" not in field else "rope_")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_type_of_position_embeddings_is_ignored_as_in_transformers(name: str, tmp_path: Path) -> None:
    save_family(tmp_path, name, **SETTINGS[name])
    edit_json(tmp_path / "config.json", position_embedding_type="rope")
    assert read_checkpoint(tmp_path).encoder.config.positions is Positions.ROTARY


@pytest.mark.parametrize(
    ("name", "module", "kind", "content"),
    [
        # `norm_bias` is false.
        ("ModernBert", "final_norm", "bias", torch.ones(32)),
        ("ModernBert", "layers.1.attn.Wqkv", "weight", torch.ones(90, 32)),
        ("NomicBert", "encoder.layers.0.attn.Wqkv", "bias", torch.ones(96)),
        ("Gte", "encoder.layer.0.mlp.up_gate_proj", "bias", torch.ones(128)),
    ],
)
def test_a_tensor_that_the_configuration_denies_is_refused_by_name(
    name: str, module: str, kind: str, content: torch.Tensor, tmp_path: Path
) -> None:
    save_family(tmp_path, name, **SETTINGS[name])
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({**safetensors.torch.load_file(path), f"{module}.{kind}": content}, path)
    assert_checkpoint_refused(tmp_path, module, kind)


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("theta", [0, -1.0, float("inf")])
def test_a_base_of_rotary_positions_that_is_not_above_0_is_refused(kind: str, theta: float, tmp_path: Path) -> None:
    save_family(tmp_path, "ModernBert", **SETTINGS["ModernBert"])
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    edit_json(tmp_path / "config.json", rope_parameters={**rope, kind: {**rope[kind], "rope_theta": theta}})
    assert_checkpoint_refused(tmp_path, f"rope_theta {theta}", "above 0")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_head_for_masked_tokens_is_ignored(name: str, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, "ForMaskedLM", **SETTINGS[name])
    assert_equals_transformers(read_checkpoint(tmp_path, Pooling.MEAN).encoder, model.base_model, (1, 12))
