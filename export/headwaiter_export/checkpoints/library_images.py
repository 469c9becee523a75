"""Read a model of images or videos without a family: its module in transformers takes pixels, a server sends patches.

A video travels as an image whose channels are those of all its frames.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwaiter_export.checkpoints.image_format import prepared_size, read_preparation
from headwaiter_export.checkpoints.json_files import CheckpointJson, refuse_errors
from headwaiter_export.config.choices import Pooling
from headwaiter_proto.encoder_pb2 import ImageFormat

# The sides of the patches in which images travel to a model that has none, or patches of several sizes.
_PATCH_SIZES = (32, 16, 14, 8, 7, 4, 2, 1)
# Most tokens of a model, before its patches, that no register tokens are: the class and the distillation token.
_OWN_TOKENS = 2


class ImageModule(nn.Module):
    """A module of pixels as a module of rows: rows of zeros for the model's own tokens, then patches.

    It gives a row for each patch and for each token before them, or a vector if its rows are others. Rows of zeros
    complete images with too few rows, with which servers measure and check a model besides images.

    Attributes:
        wrapped: the module of transformers.
        prefix_rows: the number of the model's own tokens.
        gives_rows: whether it gives rows.
    """

    def __init__(self, module: nn.Module, image: ImageFormat) -> None:
        super().__init__()
        self.wrapped = module
        size = image.patch_size
        self._grid = (image.height // size, image.width // size)
        self._patch = (image.channels, size, size)
        # Of a video [frames, C, H, W].
        self._frames = _frames(module)
        self.prefix_rows, self.gives_rows = 0, False
        with torch.inference_mode():
            output = self._run(torch.zeros(1, image.channels, image.height, image.width))
        if output.ndim == 3:
            config: Any = module.config
            own_tokens = output.shape[1] - self._grid[0] * self._grid[1]
            registers = getattr(config, "num_register_tokens", None) or 0
            self.gives_rows = own_tokens in (*range(_OWN_TOKENS + 1), registers + 1)
            self.prefix_rows = own_tokens if self.gives_rows else 0

    @property
    def tokens(self) -> int:
        """The number of rows of an image."""
        return self.prefix_rows + self._grid[0] * self._grid[1]

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Return rows [B, N, width] or vectors [B, width] of images [B, N, C·P·P]."""
        count = rows.shape[1]
        rows = torch.where(mask[..., None] > 0, rows, 0.0)
        zeros = rows.new_zeros(rows.shape[0], self.tokens, rows.shape[2])
        patches = torch.cat((rows, zeros), 1)[:, self.prefix_rows : self.tokens]
        # [B, h, w, C, P, P] to [B, C, h·P, w·P].
        patches = patches.reshape(-1, *self._grid, *self._patch).permute(0, 3, 1, 4, 2, 5)
        output = self._run(patches.flatten(4, 5).flatten(2, 3))
        if self.gives_rows:
            return output[:, :count]
        return output if output.ndim == 2 else output.mean(1)

    def _run(self, pixels: Tensor) -> Tensor:
        """Return the vectors [B, width] of an encoder beside one of texts, or rows [B, n, width] of other modules."""
        module: Any = self.wrapped
        if has_texts(module):
            features = module.get_image_features(pixel_values=pixels)
            return features if isinstance(features, Tensor) else features.pooler_output
        if self._frames:
            pixels = pixels.reshape(-1, self._frames, self._patch[0] // self._frames, *pixels.shape[2:])
        hidden: Tensor = module(pixel_values=pixels).last_hidden_state
        # Of convolutions, [B, width, h, w].
        return hidden.flatten(2).transpose(1, 2) if hidden.ndim == 4 else hidden


def _frames(module: Any) -> int:
    """Return the number of frames of the videos that a module takes; 0 for images."""
    return getattr(module.config, "num_frames", None) or 0


def has_texts(module: Any) -> bool:
    """Return whether a module has an encoder of images and one of texts, as CLIP does."""
    return hasattr(module, "get_image_features") and hasattr(module, "get_text_features")


def read_image_module(
    module: Any, folder: Path, config_json: CheckpointJson, pooling: Pooling | None, assumptions: list[str]
) -> tuple[ImageModule, ImageFormat, dict[str, Any]]:
    """Return a module of rows, its images, and its choices for `ModuleEncoder`.

    Raises:
        CheckpointError: the size of images is unknown, the module takes something else beside them, or `pooling` needs
            rows that it does not give.
    """
    image = _read_images(module, folder, config_json)
    alone = f"for an image [{image.channels}, {image.height}, {image.width}] alone"
    fails = f"{type(module).__name__} of transformers gives no rows and no vector {alone}"
    with refuse_errors(lambda reason: str(config_json.error("model_type", f"{fails} ({reason})"))):
        rows = ImageModule(module, image)
        pixels = torch.zeros(1, rows.tokens, image.channels * image.patch_size**2)
        with torch.inference_mode():
            first, second = (rows(pixels, torch.ones(pixels.shape[:2])) for _ in range(2))
    if not torch.equal(first, second):
        raise config_json.error("model_type", "it gives other results in each call")
    chosen = pooling or (Pooling.CLS if rows.prefix_rows else Pooling.MEAN)
    if not rows.gives_rows and pooling not in (None, Pooling.MEAN):
        raise config_json.error(
            "model_type", f"its rows are no patches of one size, so the export gives vectors: leave out {pooling}"
        )
    if not rows.gives_rows:
        kind = "features" if has_texts(module) else "the mean of its rows"
        assumptions.append(f"its rows are no patches of one size: vectors are {kind}, and there are no hidden rows")
    elif pooling is None:
        assumptions.append(f"the checkpoint names no pooling: {chosen}; --pooling chooses another")
    if frames := _frames(module):
        assumptions.append(f"the channels of an image are those of the {frames} frames of a video, one after another")
    elif not image.HasField("preparation"):
        assumptions.append("the export knows no image processor of the checkpoint: callers must prepare images")
    choices = {
        "feature_width": image.channels * image.patch_size**2,
        "max_tokens": rows.tokens,
        "prefix_rows": rows.prefix_rows,
        "fixed_length": True,
        "pooling": chosen,
    }
    return rows, image, choices


def _read_images(module: Any, folder: Path, config_json: CheckpointJson) -> ImageFormat:
    """Return the images of a module: their size is that of the image processor, or else of the configuration."""
    if has_texts(module) and not hasattr(module.config, "vision_config"):  # FLAVA, whose features are rows.
        raise config_json.error("model_type", "the export knows only encoders of images with a vision_config")
    config = module.config.vision_config if has_texts(module) else module.config
    channels = getattr(config, "num_channels", None) or 3
    steps = read_preparation(folder, channels)
    side = getattr(config, "image_size", None)
    if steps is not None:
        height, width = prepared_size(steps)
    elif isinstance(side, int) or (isinstance(side, list | tuple) and len(side) == 2):
        height, width = (side, side) if isinstance(side, int) else side
    else:
        raise config_json.error(
            "image_size", "neither config.json nor the image processor gives the size of images: add it"
        )
    # Two patches or more on each side, because the export compares sequences of several lengths.
    patch_size = next(
        (
            each
            for each in (getattr(config, "patch_size", None), *_PATCH_SIZES)
            if isinstance(each, int) and height % each == width % each == 0 and 2 * each <= min(height, width)
        ),
        1,
    )
    if frames := _frames(module):
        # Servers prepare images, and no videos.
        channels, steps = channels * frames, None
    return ImageFormat(channels=channels, height=height, width=width, patch_size=patch_size, preparation=steps)
