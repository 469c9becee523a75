"""Decode image files, and prepare images as the image processor of a checkpoint does."""

from collections.abc import Generator, Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from headwaiter_proto.encoder_pb2 import ImagePreparation
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_proto.rules.images import image_tokens, min_tokens, patch_rows, prefix_rows
from headwaiter_server.inputs.image_parts import decisive_parts
from headwaiter_server.runtime.bundle import MANIFEST, Bundle
from headwaiter_server.runtime.errors import BundleRefused, one_line

# Pillow holds 4 bytes a pixel, in up to four copies of an image with transparent parts.
MAX_PIXELS = 1 << 25
# Each scan of a progressive JPEG visits all pixels; a camera writes 10. This many take about half a second.
MAX_VISITED_PIXELS = 16 * MAX_PIXELS
# Pillow has a table for each row of pixels.
MAX_SIDE = 65_535
# For the whole process: Pillow's own limit would name no sequence. `_check_size` has a smaller one.
Image.MAX_IMAGE_PIXELS = None
_FIELD = "images.values"


def read_images(
    files: Sequence[bytes], manifest: Manifest, failures: Failures
) -> Generator[None, None, list[NDArray[np.generic]]]:
    """Yield between images, and return the feature rows [n, feature_width] of each; a failed image has none.

    Args:
        files: JPEG and PNG files.
        manifest: the manifest of a model of images.
        failures: keeps or raises the errors of images.

    Raises:
        InvalidInput: an image cannot be decoded, or is too large.
    """
    rows: list[NDArray[np.generic]] = []
    for index, file in enumerate(files):
        if index:
            yield
        rows.append(np.empty((0, manifest.feature_width), np.float32))
        try:
            rows[-1] = read_image(index, file, manifest)
        except InvalidInput as error:
            failures.add(error)
    return rows


def read_image(index: int, file: bytes, manifest: Manifest) -> NDArray[np.float32]:
    """Return the feature rows [n, feature_width] of the image with this index in its request.

    Raises:
        InvalidInput: the image cannot be decoded, or is too large.
    """
    steps, size = manifest.image.preparation, manifest.image.patch_size
    pixels = prepare(_decode(index, file, steps), steps)
    rows: NDArray[np.float32] = patch_rows(pixels, size, prefix_rows(manifest), (size, size), np.float32)
    return rows


def check_preparation(bundle: Bundle) -> None:
    """Check that the preparation makes images of the model's size, with a wide and a high image.

    Raises:
        BundleRefused: the preparation of the manifest fails, or makes other images.
    """
    manifest, image = bundle.manifest, bundle.manifest.image
    try:
        for sides in ((40, 30), (30, 40)):
            _check_size(0, sides, image.preparation, 1)
            with np.errstate(all="ignore"):
                pixels = prepare(Image.new("RGB", sides, (255, 127, 0)), image.preparation)
            if pixels.shape != (image.channels, image.height, image.width) or not np.isfinite(pixels).all():
                raise ValueError(f"it makes images of {list(pixels.shape)}, or no finite numbers")
        rows, width = image_tokens(manifest), image.channels * image.patch_size**2
        if width != manifest.feature_width or not min_tokens(manifest) <= rows <= manifest.max_tokens:
            raise ValueError(f"an image has {rows} rows of {width} values")
    except Exception as error:  # noqa: BLE001 - Pillow and numpy raise many types
        raise BundleRefused(
            f"{bundle.folder / MANIFEST} has an image.preparation that does not fit the model ({one_line(error)}; by "
            f"the manifest, an image is {[image.channels, image.height, image.width]}, and becomes "
            f"{min_tokens(manifest)} to {manifest.max_tokens} rows of {manifest.feature_width} values): export the "
            "model again"
        ) from None


def prepare(image: Image.Image, steps: ImagePreparation) -> NDArray[np.float32]:
    """Return the pixels [C, height, width] of an image after all steps of a preparation."""
    if sides := _resized(image.size, steps):
        image = image.resize(sides, Image.Resampling[steps.resample.upper()])
    if steps.crop_width:
        left, top = (image.width - steps.crop_width) // 2, (image.height - steps.crop_height) // 2
        image = image.crop((left, top, left + steps.crop_width, top + steps.crop_height))
    values = (np.asarray(image) * steps.rescale_factor - steps.image_mean) / steps.image_std
    pixels: NDArray[np.float32] = values.transpose(2, 0, 1).astype(np.float32)
    return pixels


def _resized(sides: tuple[int, int], steps: ImagePreparation) -> tuple[int, int] | None:
    """Return the width and the height of an image after resizing; None if it is not resized."""
    if edge := steps.resize_shortest_edge:
        width, height = sides
        return edge * width // min(sides), edge * height // min(sides)
    return (steps.resize_width, steps.resize_height) if steps.resize_width else None


def _decode(index: int, file: bytes, steps: ImagePreparation) -> Image.Image:
    """Return an image in RGB and upright, on a white ground.

    Raises:
        InvalidInput: the file is no JPEG or PNG, or is damaged, or the image is too large.
    """
    try:
        kind, parts, scans = decisive_parts(file)
    except ValueError as error:
        raise _unreadable(index, f"{error}: send a whole JPEG or PNG file") from None
    try:
        with Image.open(BytesIO(parts), formats=[kind]) as image:
            _check_size(index, image.size, steps, scans)
            ImageOps.exif_transpose(image, in_place=True)
            return _in_rgb(image)
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 Pillow raises many types of errors for damaged files.
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise _unreadable(index, f"cannot be decoded{reason}: send a whole JPEG or PNG file") from None


def _in_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB; what is transparent becomes white, as in transformers' `convert_to_rgb`."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), opaque)
    return image.convert("RGB")


def _check_size(index: int, sides: tuple[int, int], steps: ImagePreparation, scans: int) -> None:
    """Check the sides of an image as its file states them, those after resizing, and the work of all its scans."""
    shown = f"is an image of {sides[0]} × {sides[1]} pixels"
    if max(sides) > MAX_SIDE:
        raise InvalidInput(
            f"{shown}; the server accepts sides of at most {MAX_SIDE}: send a smaller image",
            sequence=index,
            field=_FIELD,
            limit=MAX_SIDE,
            actual=max(sides),
        )
    for size in (sides, _resized(sides, steps)):
        if size is not None and (pixels := size[0] * size[1]) > MAX_PIXELS:
            raise InvalidInput(
                f"{shown}, for which the server would need an array of {pixels} pixels; the server accepts at most "
                f"{MAX_PIXELS}: send a smaller image",
                sequence=index,
                field=_FIELD,
                limit=MAX_PIXELS,
                actual=pixels,
            )
    if (visited := scans * sides[0] * sides[1]) > MAX_VISITED_PIXELS:
        raise InvalidInput(
            f"{shown} in {scans} scans, so that decoding would visit {visited} pixels; the server visits at most "
            f"{MAX_VISITED_PIXELS}: send a JPEG with fewer scans, or a smaller image",
            sequence=index,
            field=_FIELD,
            limit=MAX_VISITED_PIXELS,
            actual=visited,
        )


def _unreadable(index: int, problem: str) -> InvalidInput:
    return InvalidInput(problem[:300], sequence=index, field=_FIELD)
