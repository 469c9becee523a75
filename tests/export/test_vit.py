"""Vision Transformers give the answers that `transformers` gives, to features made as docs/models.md says."""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.checkpoints import read_checkpoint
from headwaiter_export.cli import main
from headwaiter_export.config import Pooling
from headwaiter_proto.encoder_pb2 import POOLING_CLS
from headwaiter_server.runtime.bundle import Bundle
from tests.checkpoints import randomize
from tests.documents import MODELS, blocks
from tests.export.helpers import assert_checkpoint_refused, assert_close, edit_json, run_graph
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


@pytest.fixture(scope="module")
def features_of() -> Callable[[Array, int], Array]:
    """The recipe of docs/models.md."""
    (recipe,) = (block for block in blocks(MODELS, "python") if "def features_of(" in block)
    names: dict[str, Any] = {}
    exec(recipe, names)
    function: Callable[[Array, int], Array] = names["features_of"]
    return function


@pytest.mark.parametrize("settings", [{}, {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}])
def test_vit_equals_transformers(
    settings: dict[str, Any], features_of: Callable[[Array, int], Array], tmp_path: Path
) -> None:
    model = save_vit(tmp_path, **settings)
    encoder = read_checkpoint(tmp_path).encoder
    image = draw_image(12, seed=0)
    with torch.inference_mode():
        _, hidden = encoder(torch.from_numpy(features_of(image, PATCH_SIZE)), SingleSequence(10))
    assert_close(hidden.numpy(), vit_hidden(model, image))


@pytest.mark.usefixtures("packed_cpu_alone")
def test_a_vit_bundle_encodes_images_of_several_sizes_in_one_batch(
    features_of: Callable[[Array, int], Array], tmp_path: Path
) -> None:
    model = save_vit(tmp_path / "vit", num_hidden_layers=1)
    # An image of fewer patches uses the first positions.
    smaller = save_vit(tmp_path / "smaller", num_hidden_layers=1, image_size=8)
    weights = model.state_dict()
    weights["embeddings.position_embeddings"] = weights["embeddings.position_embeddings"][:, :5]
    smaller.load_state_dict(weights)
    with redirect_stdout(StringIO()) as printed:
        assert main(["checkpoint", str(tmp_path / "vit"), "-o", str(tmp_path / "bundle")]) == 0
    assert "tokenizer" not in printed.getvalue()
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.feature_width, manifest.max_tokens, manifest.pooling) == (48, 10, POOLING_CLS)

    images = [draw_image(side, seed) for seed, side in enumerate((12, 8, 12, 12, 8))]
    outputs = run_graph(
        tmp_path / "bundle" / "packed-cpu.fp32.onnx", "cpu", [features_of(i, PATCH_SIZE) for i in images]
    )
    expected = [vit_hidden(smaller if image.shape[1] == 8 else model, image) for image in images]
    assert_close(outputs.hidden, np.concatenate(expected))
    assert_close(outputs.pooled, np.stack([rows[0] for rows in expected]))


def test_a_masked_image_modeling_head_is_ignored(features_of: Callable[[Array, int], Array], tmp_path: Path) -> None:
    model = save_vit(tmp_path, "ViTForMaskedImageModeling", encoder_stride=PATCH_SIZE)
    encoder = read_checkpoint(tmp_path, Pooling.NONE).encoder
    image = draw_image(12, seed=0)
    with torch.inference_mode():
        _, hidden = encoder(torch.from_numpy(features_of(image, PATCH_SIZE)), SingleSequence(10))
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
