"""Turn an image into the features of a Vision Transformer."""

from operator import index as as_index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.errors import InvalidInput


def patches(image: ArrayLike, patch_size: SupportsIndex, *, prefix_rows: SupportsIndex = 1) -> NDArray[Any]:
    """Return the rows of one image for `encode_features`: rows of zeros, then one row for each patch.

    The model adds its class, distillation and register tokens to the rows of zeros. Patches are in row-major order, and
    each one is flattened with channels first, as the patch projection of the export expects.

    Args:
        image: [C, H, W] numbers, as the checkpoint's image processor returns them; H and W must be multiples of
            `patch_size`. For an image [H, W, C], pass `image.transpose(2, 0, 1)`.
        patch_size: side of a patch in pixels, as in the checkpoint's config.json.
        prefix_rows: number of rows of zeros, as in the field `prefix_rows` of `client.model()`.

    Returns:
        [prefix_rows + patches, C · patch_size²], float16 if the image is float16, else float32.

    Raises:
        InvalidInput: the image has another shape, or holds no numbers; `patch_size` is below 1, or `prefix_rows`
            below 0.
        TypeError: `patch_size` or `prefix_rows` is not a whole number.
    """
    pixels, size, zeros = np.asarray(image), as_index(patch_size), as_index(prefix_rows)
    if size < 1:
        raise InvalidInput(f"patch_size is {size}: pass a whole number of at least 1")
    if zeros < 0:
        raise InvalidInput(f"prefix_rows is {zeros}: pass a whole number of at least 0")
    if pixels.ndim != 3 or not pixels.size or pixels.shape[1] % size or pixels.shape[2] % size:
        raise InvalidInput(
            f"the image has the shape {list(pixels.shape)}: pass [C, H, W] in which H and W are multiples of the "
            f"patch_size {size}"
        )
    if pixels.dtype.kind not in "fiu":
        raise InvalidInput(f"the image holds {pixels.dtype} values: pass real numbers")
    channels, height, width = pixels.shape
    grid = pixels.reshape(channels, height // size, size, width // size, size)
    rows = np.zeros((zeros + pixels.size // (channels * size**2), channels * size**2), _float_type(pixels.dtype))
    rows[zeros:] = grid.transpose(1, 3, 0, 2, 4).reshape(rows[zeros:].shape)
    return rows


def _float_type(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float16 if dtype == np.float16 else np.float32
