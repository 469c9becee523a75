"""Turn an image, a video or a spectrogram into the features of a Vision Transformer."""

from operator import index as as_index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.images import patch_rows


def patches(
    image: ArrayLike,
    patch_size: SupportsIndex,
    *,
    prefix_rows: SupportsIndex = 1,
    strides: tuple[SupportsIndex, SupportsIndex] | None = None,
) -> NDArray[Any]:
    """Return the features of one image, video or spectrogram: rows of zeros, then one row for each patch.

    The model adds its class, distillation and register tokens to the rows of zeros. Patches are in row-major order, and
    each one is flattened with channels first, as the patch projection of the export expects.

    Args:
        image: [C, H, W] numbers, as the checkpoint's image processor returns them. For an image [H, W, C], pass
            `image.transpose(2, 0, 1)`; for a spectrogram [frames, mel bins], pass `spectrogram.T[None]`; for a video
            [frames, C, H, W], pass `video.reshape(-1, H, W)`.
        patch_size: side of a patch in pixels, as in the checkpoint's config.json.
        prefix_rows: number of rows of zeros, as in the field `prefix_rows` of `client.model()`.
        strides: steps from one patch to the next, down and across. Pixels behind the last complete patch are left out.
            None for patches side by side, without pixels left over: H and W must be multiples of `patch_size`.

    Returns:
        [prefix_rows + patches, C · patch_size²], float16 if the image is float16, else float32.

    Raises:
        InvalidInput: the image has another shape, or holds no numbers; `patch_size` or a stride is below 1, or
            `prefix_rows` below 0.
        TypeError: one of these is not a whole number.
    """
    pixels, size, zeros = np.asarray(image), as_index(patch_size), as_index(prefix_rows)
    down, across = (size, size) if strides is None else map(as_index, strides)
    if min(size, down, across) < 1:
        raise InvalidInput(
            f"patch_size is {size} and the strides are {down} and {across}: pass whole numbers of at least 1"
        )
    if zeros < 0:
        raise InvalidInput(f"prefix_rows is {zeros}: pass a whole number of at least 0")
    _check_shape(pixels.shape, size, whole=strides is None)
    if pixels.dtype.kind not in "fiu":
        raise InvalidInput(f"the image holds {pixels.dtype} values: pass real numbers")
    return patch_rows(pixels, size, zeros, (down, across), _float_type(pixels.dtype))


def _check_shape(shape: tuple[int, ...], size: int, *, whole: bool) -> None:
    sides = shape[1:]
    if len(shape) != 3 or not shape[0] or min(sides) < size or (whole and any(side % size for side in sides)):
        allowed = f"multiples of the patch_size {size}" if whole else f"at least the patch_size {size}"
        raise InvalidInput(f"the image has the shape {list(shape)}: pass [C, H, W] in which H and W are {allowed}")


def _float_type(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float16 if dtype == np.float16 else np.float32
