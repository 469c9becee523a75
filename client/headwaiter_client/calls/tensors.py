"""Read the tensors of a reply as NumPy arrays that are views of the reply's bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb

_FLOATS: dict[pb.DataType, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT16: np.dtype("<f2"),
}


@dataclass(frozen=True, eq=False)
class Int8Array:
    """Vectors quantized to 8 bits per value; the float vectors are `values · scales`.

    Attributes:
        values: int8 [..., width].
        scales: float32 [...], one scale per vector.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]

    def to_float32(self) -> NDArray[np.float32]:
        """Return the vectors, float32 [..., width]."""
        return self.values * self.scales[..., np.newaxis]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `values`."""
        return self.values.shape

    def __repr__(self) -> str:
        return f"<Int8Array {list(self.shape)}>"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: int | slice) -> "Int8Array":
        return Int8Array(self.values[rows], np.asarray(self.scales[rows]))


_Vectors = TypeVar("_Vectors", NDArray[Any], Int8Array)


def float_array(tensor: pb.Tensor) -> NDArray[Any]:
    """Return a view of a float32 or float16 tensor.

    Raises:
        KeyError: the tensor has another data type.
        ValueError: the number of bytes does not match the shape.
    """
    return np.frombuffer(tensor.data, _FLOATS[tensor.dtype]).reshape(tuple(tensor.shape))


def int8_array(tensor: pb.Tensor) -> Int8Array:
    """Return a view of an int8 tensor of rank 2.

    Raises:
        ValueError: the number of bytes does not match the shape, or the number of scales is not the number of rows.
    """
    values = np.frombuffer(tensor.data, np.int8).reshape(tuple(tensor.shape))
    scales = np.array(tensor.row_scales, np.float32)
    if scales.shape != values.shape[:1]:
        raise ValueError(f"{len(scales)} scales for values of shape {values.shape}")
    return Int8Array(values, scales)


def read_vectors(
    response: pb.EncodeResponse, field: Literal["pooled", "hidden"]
) -> tuple[NDArray[Any] | None, Int8Array | None]:
    """Return a reply's vectors as (floats, None) or (None, int8 values), or (None, None) if the reply has none."""
    tensor: pb.Tensor = getattr(response, field)
    if not response.HasField(field):
        return None, None
    return (None, int8_array(tensor)) if tensor.dtype == pb.DATA_TYPE_INT8 else (float_array(tensor), None)


def split_rows(rows: _Vectors, lengths: NDArray[np.int64]) -> list[_Vectors]:
    """Split the concatenated rows of several sequences into one view per sequence.

    Args:
        rows: [T, width], with T the sum of the lengths.
        lengths: [B] rows of each sequence.
    """
    return [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def concatenate_int8(arrays: Sequence[Int8Array]) -> Int8Array:
    """Concatenate one or more arrays along their first axis."""
    return Int8Array(np.concatenate([one.values for one in arrays]), np.concatenate([one.scales for one in arrays]))
