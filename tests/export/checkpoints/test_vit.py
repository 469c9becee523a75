"""Vision Transformers give the answers that `transformers` gives, to features that the client's `patches` makes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_client import patches
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.layout import SingleSequence
from tests.checkpoints import save_vit
from tests.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.oracle import Array

PATCH_SIZE = 4


def draw_image(side: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((3, side, side), np.float32)


def vit_hidden(model: transformers.PreTrainedModel, image: Array) -> Array:
    """Return the hidden rows [1 + patches, d] of one image in `transformers`."""
    with torch.inference_mode():
        hidden: Array = model(torch.from_numpy(image)[None]).last_hidden_state[0].numpy()
    return hidden


@pytest.mark.parametrize("settings", [{}, {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}])
def test_vit_equals_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    model = save_vit(tmp_path, **settings)
    encoder = read_checkpoint(tmp_path).encoder
    image = draw_image(12, seed=0)
    with torch.inference_mode():
        _, hidden = encoder(torch.from_numpy(patches(image, PATCH_SIZE)), SingleSequence(10))
    assert_close(hidden.numpy(), vit_hidden(model, image))


def test_patches_are_those_of_the_models_own_projection(tmp_path: Path) -> None:
    model = save_vit(tmp_path, image_size=20, patch_size=4)
    image = draw_image(20, seed=1)
    projection = model.embeddings.patch_embeddings
    rows = patches(image, 4)
    assert rows.shape == (26, 48)
    assert rows.dtype == np.float32
    assert not rows[0].any()
    kernel, bias = (projection.projection.get_parameter(name).detach().numpy() for name in ("weight", "bias"))
    with torch.inference_mode():
        expected = projection(torch.from_numpy(image)[None])[0].numpy()
    assert_close(rows[1:] @ kernel.reshape(32, -1).T + bias, expected)


def test_a_masked_image_modeling_head_is_ignored(tmp_path: Path) -> None:
    model = save_vit(tmp_path, "ViTForMaskedImageModeling", encoder_stride=PATCH_SIZE)
    encoder = read_checkpoint(tmp_path, Pooling.NONE).encoder
    image = draw_image(12, seed=0)
    with torch.inference_mode():
        _, hidden = encoder(torch.from_numpy(patches(image, PATCH_SIZE)), SingleSequence(10))
    assert_close(hidden.numpy(), vit_hidden(model.vit, image))


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
