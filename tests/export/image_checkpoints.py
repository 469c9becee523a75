"""Tiny random checkpoints of models of images, and their hidden rows in `transformers`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headwaiter_client import patches
from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.checkpoints import read_checkpoint
from headwaiter_export.config import Pooling
from tests.checkpoints import randomize
from tests.oracle import Array

# Sizes of every family, for images [3, 12, 12] of 9 patches.
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 12, "patch_size": 4}
FEED_FORWARD = {"intermediate_size": 64}
# The names of the classes in `transformers` without "Config" and "Model", and the family's own sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "ViT": FEED_FORWARD,
    "DeiT": FEED_FORWARD,
    "CLIPVision": FEED_FORWARD,
    "SiglipVision": FEED_FORWARD,
    "Dinov2": {},
    "Dinov2WithRegisters": {"num_register_tokens": 3},
}
COMMON_FIELDS = {each.name for each in fields(transformers.PreTrainedConfig)}


def config_class(name: str) -> Any:
    """Return the configuration of a family in `transformers`."""
    return getattr(transformers, f"{name}Config")


def own_fields(name: str) -> list[str]:
    """Return the fields of a family's configuration that not every model has."""
    return [each.name for each in fields(config_class(name)) if each.name not in COMMON_FIELDS]


def save_image_model(folder: Path, name: str, kind: str = "Model", **settings: Any) -> transformers.PreTrainedModel:
    """Save a random checkpoint of a family."""
    torch.manual_seed(0)
    config = config_class(name)(**{**SIZES, **FAMILIES[name], **settings}, attn_implementation="eager")
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def draw_image(config: Any, seed: int = 0) -> Array:
    """Draw an image [C, H, W] of the size that a configuration describes."""
    shape = (config.num_channels, config.image_size, config.image_size)
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def expected_hidden(model: transformers.PreTrainedModel, image: Array) -> Array:
    """Return the hidden rows [n, d] of one image in `transformers`."""
    with torch.inference_mode():
        hidden: Array = model(torch.from_numpy(image)[None], return_dict=True).last_hidden_state[0].numpy()
    return hidden


def exported_hidden(folder: Path, config: Any, image: Array) -> Array:
    """Return the hidden rows [n, d] of one image in the encoder that is read from a checkpoint."""
    encoder = read_checkpoint(folder, Pooling.NONE).encoder
    side = config.image_size - config.image_size % config.patch_size
    rows = patches(image[:, :side, :side], config.patch_size, prefix_rows=encoder.config.prefix_rows)
    assert len(rows) == encoder.config.max_tokens
    assert encoder.config.fixed_length
    with torch.inference_mode():
        hidden: Array = encoder(torch.from_numpy(rows), SingleSequence(len(rows)))[1].numpy()
    return hidden
