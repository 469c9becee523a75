"""Tiny random checkpoints of models of images and audio, and their hidden rows in `transformers`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from headwaiter_client import patches
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import SingleSequence
from tests.support.checkpoints import randomize
from tests.support.oracle import Array

LAYERS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
FEED_FORWARD = {"intermediate_size": 64}
# Images [3, 12, 12] of 9 patches.
IMAGES = {"image_size": 12, "patch_size": 4}
# Spectrograms [11, 9] of 3 · 3 patches.
SPECTROGRAMS = {"patch_size": 4, "frequency_stride": 2, "time_stride": 3, "max_length": 11, "num_mel_bins": 9}
# Sounds of 14 frames [80] before the convolutions, and of 7 frames [32] after them.
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "max_source_positions": 7,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 20,
    "vocab_size": 30,
    "max_target_positions": 5,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
}
# Windows of 30 samples, 20 apart, of which the first convolution has 5 outputs, 4 until the next window.
WAVEFORMS = {
    **LAYERS,
    **FEED_FORWARD,
    "conv_dim": (8, 12, 16),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 20,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 12,
}
# The sizes of each family. The names are those of the classes in `transformers`, without "Config" and "Model".
FAMILIES: dict[str, dict[str, Any]] = {
    "ViT": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "DeiT": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "AST": {**LAYERS, **FEED_FORWARD, **SPECTROGRAMS},
    "CLIPVision": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "SiglipVision": {**LAYERS, **FEED_FORWARD, **IMAGES},
    "Whisper": WHISPER,
    "Wav2Vec2": WAVEFORMS,
    "Hubert": {**WAVEFORMS, "feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True},
    "WavLM": {**WAVEFORMS, "num_buckets": 20, "max_bucket_distance": 12},
    "Dinov2": {**LAYERS, **IMAGES},
    "Beit": {**LAYERS, **FEED_FORWARD, **IMAGES, "use_relative_position_bias": True},
    "Data2VecVision": {**LAYERS, **FEED_FORWARD, **IMAGES, "use_shared_relative_position_bias": True},
    "DINOv3ViT": {**LAYERS, **FEED_FORWARD, **IMAGES, "num_register_tokens": 2},
    "Dinov2WithRegisters": {**LAYERS, **IMAGES, "num_register_tokens": 3},
}
# The model types whose sequences have any number of rows.
_WAVEFORM_TYPES = ("wav2vec2", "hubert", "wavlm")
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
    sizes = FAMILIES[name] if name in FAMILIES else {"vision_config": FAMILIES[f"{name}Vision"]}
    config = config_class(name)(**{**sizes, **settings}, attn_implementation="eager")
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def draw_input(model: transformers.PreTrainedModel, seed: int = 0) -> Array:
    """Draw an input of the size that a model takes.

    Return an image [C, H, W], a spectrogram in the model's own order, or the samples of a sound; a larger seed makes
    the sound longer.
    """
    config = getattr(model.config, "vision_config", model.config)
    shape: tuple[int, ...]
    if config.model_type in _WAVEFORM_TYPES:
        window, hop = window_and_hop(config)
        shape = (window + 11 * seed * hop,)
    elif config.model_type == "audio-spectrogram-transformer":
        shape = (config.max_length, config.num_mel_bins)
    elif config.model_type == "whisper":
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
    else:
        shape = (config.num_channels, config.image_size, config.image_size)
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def window_and_hop(config: Any) -> tuple[int, int]:
    """Return how many samples a row of the last convolution depends on, and how many are between two such rows."""
    window, hop = 1, 1
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        window, hop = window + (kernel - 1) * hop, hop * stride
    return window, hop


def input_rows(model: transformers.PreTrainedModel, values: Array, prefix_rows: int) -> Array:
    """Return the features of an input of `draw_input`."""
    config = getattr(model.config, "vision_config", model.config)
    if config.model_type == "whisper":
        with torch.inference_mode():
            frames: Array = convolved(model.base_model.encoder, torch.from_numpy(values)).numpy()
        return frames
    if config.model_type in _WAVEFORM_TYPES:
        window, hop = window_and_hop(config)
        return np.lib.stride_tricks.sliding_window_view(values, window)[::hop].copy()
    if config.model_type == "audio-spectrogram-transformer":
        strides = (config.frequency_stride, config.time_stride)
        return patches(values.T[None], config.patch_size, prefix_rows=prefix_rows, strides=strides)
    strides = (config.patch_size, config.patch_size)
    return patches(values, config.patch_size, prefix_rows=prefix_rows, strides=strides)


def convolved(encoder: Any, spectrogram: Tensor) -> Tensor:
    """Return the frames [n, d_model] that the blocks of Whisper's encoder take."""
    return F.gelu(encoder.conv2(F.gelu(encoder.conv1(spectrogram[None]))))[0].T


def expected_hidden(model: transformers.PreTrainedModel, values: Array) -> Array:
    """Return the hidden rows [n, d] of one input in `transformers`."""
    encoder = model.base_model.encoder if model.config.model_type == "whisper" else model
    with torch.inference_mode():
        hidden: Array = encoder(torch.from_numpy(values)[None], return_dict=True).last_hidden_state[0].numpy()
    return hidden


def exported_hidden(folder: Path, model: transformers.PreTrainedModel, values: Array) -> Array:
    """Return the hidden rows [n, d] of one input in the encoder that is read from a checkpoint."""
    encoder = read_checkpoint(folder, Pooling.NONE).encoder
    rows = input_rows(model, values, encoder.config.prefix_rows)
    if model.config.model_type not in _WAVEFORM_TYPES:
        assert len(rows) == encoder.config.max_tokens
        assert encoder.config.fixed_length
    with torch.inference_mode():
        hidden: Array = encoder(torch.from_numpy(rows), SingleSequence(len(rows)))[1].numpy()
    return hidden
