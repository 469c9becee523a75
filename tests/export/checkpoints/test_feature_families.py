"""Tiny random checkpoints of models of images and audio give the hidden rows that `transformers` gives.

Each field of each configuration is changed: the encoder follows the change, or the export names the field.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.reference import run_in_pytorch
from tests.support.checkpoints import save_vit
from tests.support.export.feature_checkpoints import (
    FAMILIES,
    config_class,
    draw_input,
    expected_hidden,
    exported_hidden,
    input_rows,
    own_fields,
    save_feature_model,
)
from tests.support.export.helpers import assert_checkpoint_refused, assert_close_to_scale, drop_fields, edit_json

# Other values of fields whose double has no meaning.
OTHER_VALUES: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_channels": 1,
    "hidden_act": "relu",
    "layer_norm_eps": 0.1,
    "image_size": 18,
    "patch_size": 3,
    "pooler_act": "relu",
    "num_mel_bins": 11,
    "activation_function": "relu",
    "encoder_attention_heads": 8,
    "suppress_tokens": [1],
    "conv_dim": (8, 16, 12),
    "conv_kernel": (11, 3, 3),
    "conv_stride": (4, 3, 2),
    "feat_extract_norm": "layer",
    "feat_extract_activation": "relu",
    "adapter_attn_dim": 4,
    "ctc_loss_reduction": "mean",
}
# transformers refuses add_fpn, which belongs to segmentation, without other fields.
CHANGES = [
    (name, field)
    for name in FAMILIES
    for field in [*own_fields(name), "head_dim"]
    if (name, field) != ("Beit", "add_fpn")
]


def other_value(field: str, value: Any) -> Any:
    if field in OTHER_VALUES:
        return OTHER_VALUES[field]
    if isinstance(value, bool):
        return not value
    if not value:
        return 1 if isinstance(value, int) else 0.5
    return 2 * value


@pytest.mark.parametrize(
    ("name", "field"), [("ViT", "hidden_act"), ("DINOv3ViT", "key_bias"), ("AST", "layer_norm_eps")]
)
def test_a_field_that_is_left_out_has_the_default_of_transformers(name: str, field: str, tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, name)
    drop_fields(tmp_path / "config.json", field)
    values = draw_input(model)
    assert_close_to_scale(exported_hidden(tmp_path, model, values), expected_hidden(model, values))


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        *((name, "Model", {}) for name in FAMILIES),
        ("ViT", "Model", {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
        ("Dinov2", "Model", {"use_swiglu_ffn": True, "hidden_act": "relu"}),
        ("Dinov2WithRegisters", "Model", {"use_swiglu_ffn": True, "mlp_ratio": 3}),
        ("DINOv3ViT", "Model", {"use_gated_mlp": True, "hidden_act": "silu", "mlp_bias": False}),
        ("Beit", "Model", {"use_relative_position_bias": False, "use_absolute_position_embeddings": True}),
        ("Beit", "Model", {"use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True}),
        ("Beit", "Model", {"use_mean_pooling": False, "layer_scale_init_value": 0.0}),
        ("Data2VecVision", "Model", {"use_mean_pooling": False, "use_relative_position_bias": True}),
        # Other parts of a model are ignored.
        ("Beit", "ForMaskedImageModeling", {"use_mask_token": True}),
        ("ViT", "ForMaskedImageModeling", {"encoder_stride": 4}),
        ("Whisper", "ForConditionalGeneration", {}),
        ("Wav2Vec2", "ForPreTraining", {}),
        ("Wav2Vec2", "Model", {"num_conv_pos_embeddings": 1, "num_conv_pos_embedding_groups": 32}),
        ("Hubert", "Model", {"num_conv_pos_embeddings": 35, "feat_extract_norm": "group"}),
    ],
)
def test_a_family_equals_transformers(name: str, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, name, kind, **settings)
    values = draw_input(model, seed=1)
    base = model if kind == "Model" or name == "Whisper" else model.base_model
    assert_close_to_scale(exported_hidden(tmp_path, model, values), expected_hidden(base, values))


@pytest.mark.parametrize(("name", "kind"), [("Data2VecVision", "Model"), ("Beit", "ForMaskedImageModeling")])
def test_without_a_norm_of_vectors_a_vector_is_the_mean_of_the_patches(name: str, kind: str, tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, name, kind, use_mask_token=True)
    values = draw_input(model, seed=1)
    encoder = read_checkpoint(tmp_path).encoder
    (outputs,) = run_in_pytorch(encoder, [input_rows(model, values, encoder.config.prefix_rows)])
    assert_close_to_scale(outputs.pooled, expected_hidden(model.base_model, values)[None, 1:].mean(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "field"), CHANGES)
def test_each_field_of_a_configuration_is_followed_or_refused_by_name(name: str, field: str, tmp_path: Path) -> None:
    value = other_value(field, FAMILIES[name].get(field, getattr(config_class(name)(), field, 8)))
    model = save_feature_model(tmp_path, name, **{field: value})
    values = draw_input(model, seed=1)
    with suppress(CheckpointError):
        assert_close_to_scale(exported_hidden(tmp_path, model, values), expected_hidden(model, values))
        return
    assert_checkpoint_refused(tmp_path, field)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"architectures": ["ViTForImageClassification"]}, ["classifier.weight"]),
        ({"patch_size": [4, 4]}, ["config.json", "patch_size [4, 4]", "whole number"]),
        ({"image_size": [12, 12]}, ["config.json", "image_size [12, 12]"]),
        ({"image_size": 16}, ["embeddings.position_embeddings", "[1, 10, 32]", "[1, 17, 32]"]),
        ({"image_size": 3}, ["config.json", "image_size 3", "from 4"]),
        ({"num_channels": 1}, ["projection.weight", "[32, 3, 4, 4]", "[32, 1, 4, 4]"]),
        ({"qkv_bias": "no"}, ["config.json", "qkv_bias 'no'", "true or false"]),
        ({"qkv_bias": False}, ["encoder.layer.0.attention.attention.key.bias"]),
    ],
)
def test_an_unsupported_setting_of_vit_is_named(changes: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    save_vit(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    assert_checkpoint_refused(tmp_path, *facts)
