"""Tiny random checkpoints of models of images and audio, and their hidden rows in `transformers`."""

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

LAYERS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
FEED_FORWARD = {"intermediate_size": 64}
# Images [3, 12, 12] of 9 patches.
IMAGES = {"image_size": 12, "patch_size": 4}
# Spectrograms [11, 9] of 3 · 3 patches.
SPECTROGRAMS = {"patch_size": 4, "frequency_stride": 2, "time_stride": 3, "max_length": 11, "num_mel_bins": 9}
# The sizes of each family. The names are those of the classes in `transformers`, without "Config" and "Model".
FAMILIES: dict[str, dict[str, Any]] = {
    "ViT": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "DeiT": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "AST": {**LAYERS, **FEED_FORWARD, **SPECTROGRAMS},
    "CLIPVision": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "SiglipVision": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "Dinov2": {**LAYERS, **IMAGES},
    "Dinov2WithRegisters": {**LAYERS, **IMAGES, "num_register_tokens": 3},
}
COMMON_FIELDS = {each.name for each in fields(transformers.PreTrainedConfig)}


def config_class(name: str) -> Any:
    """Return the configuration of a family in `transformers`."""
    return getattr(transformers, f"{name}Config")


def own_fields(name: str) -> list[str]:
    """Return the fields of a family's configuration that not every model has."""
    return [each.name for each in fields(config_class(name)) if each.name not in COMMON_FIELDS]


def save_feature_model(folder: Path, name: str, kind: str = "Model", **settings: Any) -> transformers.PreTrainedModel:
    """Save a random checkpoint of a family."""
    torch.manual_seed(0)
    config = config_class(name)(**{**FAMILIES[name], **settings}, attn_implementation="eager")
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def draw_input(config: Any, seed: int = 0) -> Array:
    """Draw an image [C, H, W], or a spectrogram [frames, mel bins], of the size that a configuration describes."""
    images = (getattr(config, "num_channels", 0), *2 * (getattr(config, "image_size", 0),))
    shape = (config.max_length, config.num_mel_bins) if config.model_type.startswith("audio") else images
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def input_rows(config: Any, values: Array, prefix_rows: int) -> Array:
    """Return the features of an input of `draw_input`."""
    if values.ndim == 2:
        strides = (config.frequency_stride, config.time_stride)
        return patches(values.T[None], config.patch_size, prefix_rows=prefix_rows, strides=strides)
    strides = (config.patch_size, config.patch_size)
    return patches(values, config.patch_size, prefix_rows=prefix_rows, strides=strides)


def expected_hidden(model: transformers.PreTrainedModel, values: Array) -> Array:
    """Return the hidden rows [n, d] of one input in `transformers`."""
    with torch.inference_mode():
        hidden: Array = model(torch.from_numpy(values)[None], return_dict=True).last_hidden_state[0].numpy()
    return hidden


def exported_hidden(folder: Path, config: Any, values: Array) -> Array:
    """Return the hidden rows [n, d] of one input in the encoder that is read from a checkpoint."""
    encoder = read_checkpoint(folder, Pooling.NONE).encoder
    rows = input_rows(config, values, encoder.config.prefix_rows)
    assert len(rows) == encoder.config.max_tokens
    assert encoder.config.fixed_length
    with torch.inference_mode():
        hidden: Array = encoder(torch.from_numpy(rows), SingleSequence(len(rows)))[1].numpy()
    return hidden
