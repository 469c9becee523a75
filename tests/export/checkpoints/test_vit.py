"""The client's `patches` makes the features of a Vision Transformer; unsupported settings are errors that name them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from headwaiter_client import patches
from tests.support.checkpoints import save_vit
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, edit_json


def test_patches_are_those_of_the_models_own_projection(tmp_path: Path) -> None:
    model = save_vit(tmp_path, image_size=20, patch_size=4)
    image = np.random.default_rng(1).standard_normal((3, 20, 20), np.float32)
    projection = model.embeddings.patch_embeddings
    rows = patches(image, 4)
    assert rows.shape == (26, 48)
    assert rows.dtype == np.float32
    assert not rows[0].any()
    kernel, bias = (projection.projection.get_parameter(name).detach().numpy() for name in ("weight", "bias"))
    with torch.inference_mode():
        expected = projection(torch.from_numpy(image)[None])[0].numpy()
    assert_close(rows[1:] @ kernel.reshape(32, -1).T + bias, expected)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"architectures": ["ViTForImageClassification"]}, ["classifier.weight"]),
        ({"patch_size": [4, 4]}, ["config.json", "patch_size [4, 4]", "whole number"]),
        ({"image_size": None}, ["config.json", "image_size None", "whole number"]),
        ({"image_size": 16}, ["embeddings.position_embeddings", "[1, 10, 32]", "[1, 17, 32]"]),
        ({"image_size": 3}, ["config.json", "image_size 3", "from 4"]),
        ({"num_channels": 1}, ["projection.weight", "[32, 3, 4, 4]", "[32, 1, 4, 4]"]),
        ({"qkv_bias": "no"}, ["config.json", "qkv_bias 'no'", "true or false"]),
        ({"qkv_bias": False}, ["encoder.layer.0.attention.attention.key.bias"]),
        ({"hidden_act": "mish"}, ["config.json", "hidden_act 'mish'"]),
    ],
)
def test_an_unsupported_setting_of_vit_is_named(changes: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    save_vit(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    assert_checkpoint_refused(tmp_path, *facts)


def test_the_missing_class_token_of_a_vit_is_named(tmp_path: Path) -> None:
    save_vit(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors["embeddings.cls_token"]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert_checkpoint_refused(tmp_path, "embeddings.cls_token")
