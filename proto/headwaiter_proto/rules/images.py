"""The sequences of a model of images: rows of zeros, then one row for each patch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.limits import RequestLimits, check_count, check_tokens

_RGB = 3
_ROW_VALUE_BYTES = 4


def takes_images(manifest: Manifest) -> bool:
    """Return whether the server can prepare images, which it converts to RGB, for a model."""
    return manifest.image.HasField("preparation") and manifest.image.channels == _RGB


def check_images(images: pb.Images, manifest: Manifest, limits: RequestLimits) -> int:
    """Check the images of a request before they are decoded, and return the number of their tokens.

    Raises:
        InvalidInput: the model takes no images, or the request has too many of them.
    """
    if not takes_images(manifest):
        advice = "takes no images: name a model of images"
        if manifest.HasField("image"):
            advice = "has no image processor that the server knows: prepare the images, and send features"
        raise InvalidInput(f"images: the model {advice}", field="images")
    check_count(len(images.values), limits)
    tokens = len(images.values) * image_tokens(manifest)
    check_tokens(tokens, limits)
    size_bytes = tokens * manifest.feature_width * _ROW_VALUE_BYTES
    if size_bytes > limits.message_bytes:
        raise InvalidInput(
            f"the prepared images take {size_bytes} bytes; the server accepts at most {limits.message_bytes}, as of "
            "features: split the request",
            field="images",
            limit=limits.message_bytes,
            actual=size_bytes,
        )
    return tokens


def patch_rows(pixels: NDArray[Any], size: int, zeros: int, strides: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """Return rows of zeros, then one row for each patch of an image, flattened with channels first.

    Args:
        pixels: [C, H, W].
        size: side of a patch.
        zeros: number of rows of zeros.
        strides: steps from one patch to the next, down and across; pixels behind the last patch are left out.
        dtype: type of the rows [zeros + patches, C · size²].
    """
    windows = sliding_window_view(pixels, (size, size), (1, 2))[:, :: strides[0], :: strides[1]]
    flat = windows.transpose(1, 2, 0, 3, 4).reshape(-1, len(pixels) * size**2)
    rows = np.zeros((zeros + len(flat), flat.shape[1]), dtype)
    rows[zeros:] = flat
    return rows


def image_tokens(manifest: Manifest) -> int:
    """Return the number of tokens of each image, rows of zeros included."""
    image = manifest.image
    return (image.height // image.patch_size) * (image.width // image.patch_size) + prefix_rows(manifest)


def min_tokens(manifest: Manifest) -> int:
    """Return the fewest tokens of a sequence that the model accepts."""
    return manifest.max_tokens if manifest.fixed_length else max(1, manifest.min_tokens)


def prefix_rows(manifest: Manifest) -> int:
    """Return the number of rows of zeros at the start of each sequence."""
    return manifest.prefix_rows or int(manifest.class_row)


def wrong_fixed_length(index: int, length: int, path: str, manifest: Manifest) -> InvalidInput:
    """Return the error of a sequence whose length is not the model's only length."""
    tokens = manifest.max_tokens
    zeros = prefix_rows(manifest)
    parts = f"{_rows_of_zeros(zeros)} and the {tokens - zeros} patches of an image" if zeros else f"{tokens} rows"
    kind = SequenceTooLong if length > tokens else InvalidInput
    return kind(
        f"has length {length}; the model accepts only {tokens}, because each position is a place in its grid: send "
        f"{parts} of the model's own size",
        sequence=index,
        field=path,
        limit=tokens,
        actual=length,
    )


def check_prefix_rows(rows: NDArray[Any], ends: Sequence[int], zeros: int, failures: Failures) -> None:
    """Refuse the sequences whose first rows are not zeros."""
    for index, (begin, end) in enumerate(pairwise([0, *ends])):
        wrong = rows[begin : min(begin + zeros, end)].any(axis=1)
        if index not in failures and wrong.any():
            failures.add(
                InvalidInput(
                    f"has values other than 0 at position {wrong.argmax()}, where the model adds a token of its own: "
                    f"send {_rows_of_zeros(zeros)} before the patches",
                    sequence=index,
                    field="features.data",
                )
            )


def _rows_of_zeros(count: int) -> str:
    return "a row of zeros" if count == 1 else f"{count} rows of zeros"
