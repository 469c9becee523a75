"""Read the images that a checkpoint takes: their size in config.json, and how its image processor prepares them."""

import math
from pathlib import Path
from typing import Any

from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.processor_files import read_processor
from headwaiter_proto.encoder_pb2 import ImageFormat, ImagePreparation

# Pillow's filters by the numbers that `transformers` saves.
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_SQUARE = {"height": 224, "width": 224}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_ALWAYS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
# Whether a size that is one number is the length of both sides; otherwise it is the length of the shorter side.
_BOTH_SIDES, _SHORTER_SIDE = {"default_to_square": True}, {"default_to_square": False}
_CLIP = {
    **_ALWAYS,
    **_SHORTER_SIDE,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": _SQUARE,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# The processors that ImagePreparation can describe, with the values of fields that their files may leave out.
_PROCESSORS: dict[str, dict[str, Any]] = {
    "BeitImageProcessor": {
        **_ALWAYS,
        **_BOTH_SIDES,
        **_HALVES,
        "size": _SQUARE,
        "resample": 3,
        "crop_size": _SQUARE,
    },
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "ChineseCLIPImageProcessor": _CLIP,
    "DeiTImageProcessor": {
        **_ALWAYS,
        **_BOTH_SIDES,
        **_HALVES,
        "size": {"height": 256, "width": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": _SQUARE,
    },
    "SiglipImageProcessor": {**_ALWAYS, **_SHORTER_SIDE, **_HALVES, "size": _SQUARE, "resample": 3},
    "ViTImageProcessor": {**_ALWAYS, **_BOTH_SIDES, **_HALVES, "size": _SQUARE, "resample": 2},
}


def read_image_format(folder: Path, config_json: CheckpointJson) -> ImageFormat:
    """Read the images that a checkpoint takes.

    Args:
        folder: folder of the checkpoint.
        config_json: configuration of the encoder of images.

    Raises:
        CheckpointError: a field is wrong.
    """
    side, channels = config_json.size("image_size"), config_json.size("num_channels")
    steps = read_preparation(folder, channels)
    height, width = (side, side) if steps is None else prepared_size(steps)
    return ImageFormat(
        channels=channels, height=height, width=width, patch_size=config_json.size("patch_size"), preparation=steps
    )


def prepared_size(steps: ImagePreparation) -> tuple[int, int]:
    """Return the height and the width of prepared images."""
    return steps.crop_height or steps.resize_height, steps.crop_width or steps.resize_width


def read_preparation(folder: Path, channels: int) -> ImagePreparation | None:
    """Read how the image processor of a checkpoint prepares images.

    Return None if there is no processor, if the processor does something else, or if the sizes of its images differ.
    """
    saved = read_processor(folder, "image_processor")
    kind = saved.values.get("image_processor_type", saved.values.get("feature_extractor_type"))
    name = str(kind).removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    if name not in _PROCESSORS or saved.values.get("do_pad"):
        return None
    # A step with null is left out, as in transformers.
    processor = CheckpointJson(saved.path, {**_PROCESSORS[name], **saved.values})
    if name == "CLIPImageProcessor" and processor.is_true("use_square_size"):
        # The class then ignores the size of the file.
        processor = CheckpointJson(saved.path, {**processor.values, "size": _SQUARE})
    preparation = ImagePreparation(rescale_factor=1, image_mean=[0] * channels, image_std=[1] * channels)
    if processor.is_true("do_resize"):
        size = _read_size(processor, "size", square=processor.is_true("default_to_square"))
        if size.keys() == {"shortest_edge"}:
            preparation.resize_shortest_edge = size["shortest_edge"]
        elif size.keys() == {"height", "width"}:
            preparation.resize_height, preparation.resize_width = size["height"], size["width"]
        else:
            return None
        preparation.resample = _read_filter(processor)
    if processor.is_true("do_center_crop"):
        if processor.values.get("crop_size") is None:
            return None
        size = _read_size(processor, "crop_size", square=True)
        if size.keys() != {"height", "width"}:
            return None
        preparation.crop_height, preparation.crop_width = size["height"], size["width"]
    if not (preparation.crop_height or preparation.resize_height):
        return None
    if processor.is_true("do_rescale"):
        (preparation.rescale_factor,) = _read_numbers(processor, "rescale_factor", 1)
    if processor.is_true("do_normalize"):
        preparation.image_mean[:] = _read_numbers(processor, "image_mean", channels)
        preparation.image_std[:] = _read_numbers(processor, "image_std", channels)
        if 0 in preparation.image_std:
            raise processor.error("image_std", "a deviation of 0 divides by zero: correct it")
    return preparation


def _read_size(processor: CheckpointJson, name: str, *, square: bool) -> dict[str, int]:
    """Read a field with named lengths, height and width, or one number: both sides, or the shorter without `square`."""
    value = processor.values[name]
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    elif not isinstance(value, dict):
        value = dict.fromkeys(("height", "width") if square else ("shortest_edge",), value)
    sides = CheckpointJson(processor.path, {key: length for key, length in value.items() if length is not None})
    return {key: sides.size(key) for key in sides.values}


def _read_filter(processor: CheckpointJson) -> str:
    number = processor.values["resample"]
    if type(number) is not int or not 0 <= number < len(_FILTERS):
        raise processor.error("resample", f"it must be a whole number from 0 to {len(_FILTERS) - 1}")
    return _FILTERS[number]


def _read_numbers(processor: CheckpointJson, name: str, count: int) -> list[float]:
    """Read a field with a list of numbers, or with one number for all."""
    value = processor.values[name]
    numbers = value if isinstance(value, list) else [value] * count
    if len(numbers) != count or not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        raise processor.error(name, f"it must be a number, or a list of {count} numbers")
    return numbers
