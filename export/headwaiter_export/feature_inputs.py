"""The inputs of models of images and audio: patches after rows of zeros for the model's own tokens, or frames.

Headwaiter's encoders have a linear layer on rows of features, and one table of positions. `fold_tensors` turns the
tensors at the input of a checkpoint into these.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoint_json import CheckpointJson
from headwaiter_export.config import EncoderConfig
from headwaiter_export.rotary_inputs import pair_neighbours
from headwaiter_export.weights import take_tensor
from headwaiter_proto.encoder_pb2 import ImageFormat


@dataclass(frozen=True)
class PatchInput(ABC):
    """Rows of zeros for the tokens of the model, then the square patches of a picture in row-major order.

    Each patch [C, P, P] of a picture [C, H, W] is flattened, channels first. The convolution over patches thus becomes
    a linear layer on rows [tokens + patches, C·P·P] (https://arxiv.org/abs/2010.11929, section 3.1), which
    `headwaiter_client.patches` makes. The positions belong to a grid of one size, so all pictures have this size.

    Attributes:
        projection: the convolution.
        positions: the positions of `tokens` and of the patches.
        tokens: the tokens that have positions, in the order of their rows.
        registers: the tokens without positions, whose rows follow; empty if the family has none.
        projection_bias: whether the convolution has a bias.
    """

    projection: str = "embeddings.patch_embeddings.projection"
    positions: str = "embeddings.position_embeddings"
    tokens: tuple[str, ...] = ("embeddings.cls_token",)
    registers: str = ""
    projection_bias: bool = True

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        registers = config_json.size("num_register_tokens", least=0) if self.registers else 0
        prefix_rows = len(self.tokens) + registers
        return {
            "feature_width": math.prod(self.patch_shape(config_json)),
            "max_tokens": prefix_rows + self.patches(config_json),
            "prefix_rows": prefix_rows,
        }

    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        """Remove the positions of `tokens` and of the patches from `tensors`, and return them, [n, d_model]."""
        return _take_rows(tensors, self.positions, len(self.tokens) + self.patches(config_json), config.d_model)

    @abstractmethod
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        """Return the shape (C, P, P) of a patch."""

    @abstractmethod
    def patches(self, config_json: CheckpointJson) -> int:
        """Return the number of patches."""

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the convolution by a linear layer on rows, and add the tokens of the model to their positions."""
        width = config.d_model
        kernel = take_tensor(tensors, f"{self.projection}.weight", (width, *self.patch_shape(config_json)))
        bias = take_tensor(tensors, f"{self.projection}.bias", (width,)) if self.projection_bias else torch.zeros(width)
        placed = len(self.tokens)
        registers = config.prefix_rows - placed
        table = self.take_positions(tensors, config_json, config)
        for row, name in enumerate(self.tokens):
            # The linear layer adds its bias to the rows of zeros too, so the bias is subtracted here.
            table[row] += _take_rows(tensors, name, 1, width)[0] - bias
        if self.registers:
            rows = _take_rows(tensors, self.registers, registers, width) - bias
            table = torch.cat((table[:placed], rows, table[placed:]))
        tensors |= {f"{self.projection}.weight": kernel.flatten(1), f"{self.projection}.bias": bias}
        tensors[f"{self.positions.removesuffix('.weight')}.weight"] = table


def _take_rows(tensors: dict[str, Tensor], name: str, rows: int, width: int) -> Tensor:
    """Remove a tensor of vectors from `tensors`, and return the vectors [rows, width].

    Checkpoints also have the shapes [1, rows, width] and, for a single vector, [width].
    """
    dimensions = max(tensors[name].ndim if name in tensors else 3, 1 if rows == 1 else 2)
    return take_tensor(tensors, name, (1, rows, width)[-dimensions:]).view(rows, width)


@dataclass(frozen=True)
class ImageInput(PatchInput):
    """Patches side by side, of a square image."""

    def resized(self, config: EncoderConfig, config_json: CheckpointJson, image: ImageFormat) -> EncoderConfig:
        """Return the configuration for images of the size to which the checkpoint's image processor brings them.

        Raises:
            CheckpointError: the positions belong to images of another size.
        """
        if (image.height, image.width) != 2 * (config_json.size("image_size"),):
            raise config_json.error(
                "image_size",
                f"the checkpoint's image processor makes images of {image.height} × {image.width}: correct one",
            )
        return config

    @override
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        patch_size = config_json.size("patch_size")
        return config_json.size("num_channels"), patch_size, patch_size

    @override
    def patches(self, config_json: CheckpointJson) -> int:
        patch_size = config_json.size("patch_size")
        return (config_json.size("image_size", least=patch_size) // patch_size) ** 2


@dataclass(frozen=True)
class DinoInput(ImageInput):
    """The input of DINOv2, whose positions are interpolated for images of other sizes than those of its training.

    Attributes:
        antialias: whether the interpolation to a smaller grid takes the mean of more than 4 · 4 positions.
    """

    antialias: bool = False

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        d_ff = config_json.size("hidden_size") * config_json.size("mlp_ratio")
        return {**super().sizes(config_json), "d_ff": d_ff}

    @override
    def resized(self, config: EncoderConfig, config_json: CheckpointJson, image: ImageFormat) -> EncoderConfig:
        if image.height != image.width or image.height < image.patch_size:
            return super().resized(config, config_json, image)
        return replace(config, max_tokens=config.prefix_rows + (image.height // image.patch_size) ** 2)

    @override
    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        table, placed = super().take_positions(tensors, config_json, config), len(self.tokens)
        trained, side = (math.isqrt(count) for count in (len(table) - placed, config.max_tokens - config.prefix_rows))
        if trained == side:
            return table
        # The same call as in transformers.
        grid = table[placed:].T.view(1, -1, trained, trained)
        grid = F.interpolate(grid, (side, side), mode="bicubic", align_corners=False, antialias=self.antialias)
        return torch.cat((table[:placed], grid[0].flatten(1).T))


@dataclass(frozen=True)
class RotaryImageInput(ImageInput):
    """The input of DINOv3: tokens without positions, and patches that attention rotates by their place in the grid."""

    @override
    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        return torch.zeros(len(self.tokens) + self.patches(config_json), config.d_model)

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also arrange the pairs of queries and keys as neighbours; DINOv3 pairs the two halves of a head."""
        super().fold_tensors(tensors, config_json, config)
        for name, tensor in tensors.items():
            # `take_tensor` refuses other shapes later.
            if (".q_proj." in name or ".k_proj." in name) and tensor.shape[:1] == (config.d_model,):
                tensors[name] = pair_neighbours(tensor, config.heads)


@dataclass(frozen=True)
class SpectrogramInput(PatchInput):
    """Patches that overlap, of a spectrogram [1, mel bins, frames] (https://arxiv.org/abs/2104.01778, section 2.1)."""

    @override
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        patch_size = config_json.size("patch_size")
        return 1, patch_size, patch_size

    @override
    def patches(self, config_json: CheckpointJson) -> int:
        patch_size = config_json.size("patch_size")
        bins, frames = (config_json.size(name, least=patch_size) for name in ("num_mel_bins", "max_length"))
        down, across = (config_json.size(name) for name in ("frequency_stride", "time_stride"))
        return ((bins - patch_size) // down + 1) * ((frames - patch_size) // across + 1)


@dataclass(frozen=True)
class FrameInput:
    """The frames [n, d_model] of a sound after the convolutions of Whisper (https://arxiv.org/abs/2212.04356, 2.2).

    The positions belong to sounds of one length, to which `transformers` pads all sounds.
    """

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        return {
            "feature_width": config_json.size("d_model"),
            "max_tokens": config_json.size("max_source_positions"),
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Leave all tensors as they are."""
