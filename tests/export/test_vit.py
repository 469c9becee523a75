"""Vision Transformers give the answers that `transformers` gives, to features that the client's `patches` makes."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_client import InvalidInput, SequenceTooLong, patches
from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.checkpoints import read_checkpoint
from headwaiter_export.cli import main
from headwaiter_export.config import Pooling
from headwaiter_proto.encoder_pb2 import POOLING_CLS
from headwaiter_server.runtime.bundle import Bundle
from tests.checkpoints import randomize
from tests.e2e.in_process_server import connect, serving
from tests.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.oracle import Array

PATCH_SIZE = 4


def save_vit(folder: Path, kind: str = "ViTModel", **settings: Any) -> transformers.PreTrainedModel:
    """Save a ViT for images [3, 12, 12] of 9 patches."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**{**sizes, "image_size": 12, "patch_size": PATCH_SIZE, **settings})
    model = getattr(transformers, kind)(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


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


@pytest.mark.usefixtures("packed_cpu_alone")
async def test_a_vit_bundle_encodes_images_of_its_own_size_and_refuses_all_others(tmp_path: Path) -> None:
    model = save_vit(tmp_path / "vit", num_hidden_layers=1)
    with redirect_stdout(StringIO()) as printed:
        assert main(["checkpoint", str(tmp_path / "vit"), "-o", str(tmp_path / "bundle")]) == 0
    assert "tokenizer" not in printed.getvalue()
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.feature_width, manifest.max_tokens, manifest.pooling) == (48, 10, POOLING_CLS)
    images = [draw_image(12, seed) for seed in range(3)]
    good = [patches(image, PATCH_SIZE) for image in images]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        encoding = await client.encode_features(good, hidden=True)
        assert encoding.hidden is not None
        for rows, image in zip(encoding.hidden, images, strict=True):
            assert_close(rows, vit_hidden(model, image))
        description = await client.model()
        assert (description.min_tokens, description.max_tokens) == (10, 10)
        smaller, larger = (patches(draw_image(side, 9), PATCH_SIZE) for side in (8, 16))
        for rows, actual, kind in (
            (smaller, 5, InvalidInput),
            (good[1][1:], 9, InvalidInput),  # The class row is missing.
            (larger, 17, SequenceTooLong),
        ):
            with pytest.raises(InvalidInput) as refused:
                await client.encode_features([good[0], rows])
            error = refused.value
            assert type(error) is kind
            assert (error.sequence, error.field, error.limit, error.actual) == (1, "features.lengths", 10, actual)
        with pytest.raises(InvalidInput) as refused:
            await client.encode_features([good[0], np.concatenate([good[1][1:], good[1][:1]])])
        assert (refused.value.sequence, refused.value.field) == (1, "features.data")


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
        ({"architectures": ["ViTForImageClassification"]}, ["config.json", "ViTForImageClassification"]),
        ({"patch_size": [4, 4]}, ["config.json", "patch_size [4, 4]", "whole number"]),
        ({"image_size": None}, ["config.json", "image_size None", "whole number"]),
        ({"image_size": 16}, ["embeddings.position_embeddings", "[1, 10, 32]", "[1, 17, 32]"]),
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
