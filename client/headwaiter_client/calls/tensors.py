"""Arrays as they come in: views of a reply's bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb

_FLOATS: dict[pb.DataType, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT16: np.dtype("<f2"),
}


@dataclass(frozen=True, eq=False)
class Int8Array:
    """Vectors in 8 bits a value; what they stand for is `values · scales`.

    Attributes:
        values: [..., width] int8.
        scales: [...] float32, one a vector.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]

    def to_float32(self) -> NDArray[np.float32]:
        """Returns the vectors [..., width]."""
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


def array(tensor: pb.Tensor) -> NDArray[Any]:
    """Views a tensor of floats.

    Raises:
        KeyError: its data type is none that they come in.
        ValueError: it has not as many bytes as its shape says.
    """
    return np.frombuffer(tensor.data, _FLOATS[tensor.dtype]).reshape(tuple(tensor.shape))


def int8_array(tensor: pb.Tensor) -> Int8Array:
    """Views a tensor of int8 rows.

    Raises:
        ValueError: it has not as many bytes as its shape says, or not a scale a row.
    """
    values = np.frombuffer(tensor.data, np.int8).reshape(tuple(tensor.shape))
    scales = np.array(tensor.row_scales, np.float32)
    if scales.shape != values.shape[:1]:
        raise ValueError(f"it has {len(scales)} scales for values of shape {values.shape}")
    return Int8Array(values, scales)


def split(rows: _Vectors, lengths: NDArray[np.int64]) -> list[_Vectors]:
    """Cuts rows that lie end to end into views of so many each."""
    return [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def join_int8(parts: Sequence[Int8Array]) -> Int8Array:
    """Puts arrays end to end, at least one."""
    return Int8Array(np.concatenate([part.values for part in parts]), np.concatenate([part.scales for part in parts]))
