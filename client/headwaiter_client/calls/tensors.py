"""Read the tensors of a reply as NumPy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.sparse import entries_of

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

    @cached_property
    def floats(self) -> NDArray[np.float32]:
        """The vectors, float32 [..., width], computed once."""
        return self.to_float32()

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

    def copy(self) -> "Int8Array":
        """Return the same vectors in memory of their own."""
        return Int8Array(self.values.copy(), self.scales.copy())


Vectors: TypeAlias = NDArray[Any] | Int8Array


def float_array(tensor: pb.Tensor) -> NDArray[Any]:
    """Return a read-only view of a float32 or float16 tensor.

    Raises:
        KeyError: the tensor has another data type.
        ValueError: the number of bytes does not match the shape.
    """
    return np.frombuffer(tensor.data, _FLOATS[tensor.dtype]).reshape(tuple(tensor.shape))


def int8_array(tensor: pb.Tensor) -> Int8Array:
    """Return a read-only view of an int8 tensor, with its scales.

    Raises:
        ValueError: the number of bytes does not match the shape, or the number of scales is not the number of rows.
    """
    values = np.frombuffer(tensor.data, np.int8).reshape(tuple(tensor.shape))
    scales = np.array(list(tensor.row_scales), np.float32)
    check_shape("row_scales", scales, *values.shape[:1])
    return Int8Array(values, scales)


def read_vectors(field: Literal["pooled", "hidden"], tensor: pb.Tensor, rows: int) -> Vectors:
    """Return a read-only view of a reply's vectors [rows, width].

    Raises:
        KeyError: the vectors have a data type that this client does not know.
        ValueError: the vectors have another shape.
    """
    vectors = int8_array(tensor) if tensor.dtype == pb.DATA_TYPE_INT8 else float_array(tensor)
    check_shape(field, vectors, rows, None)
    return vectors


def read_sparse(message: pb.SparseVectors, rows: int) -> list[NDArray[Any]]:
    """Return the entries of each sparse vector of a reply.

    Raises:
        KeyError: the values have a data type that this client does not know.
        ValueError: the reply has another number of vectors or of entries.
    """
    if len(message.counts) != rows:
        raise ValueError(f"sparse has {len(message.counts)} vectors, and {rows} were expected")
    return entries_of(message)


def check_shape(field: str, array: Vectors, *expected: int | None) -> None:
    """Raise a `ValueError` unless an array has the expected shape; None stands for any length of an axis."""
    fits = len(array.shape) == len(expected)
    for want, length in zip(expected, array.shape, strict=False):
        fits = fits and want in (None, length)
    if not fits:
        shape = ", ".join("any" if length is None else str(length) for length in expected)
        raise ValueError(f"{field} has the shape {list(array.shape)}, and [{shape}] was expected")


def split_rows(rows: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Split the concatenated rows of several sequences into one array per sequence, each with memory of its own.

    Memory of its own, because a view would keep the rows of all sequences in memory.

    Args:
        rows: [T, width], with T the sum of the lengths.
        lengths: [B] rows of each sequence.
    """
    return [rows[end - length : end].copy() for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def split_vectors(vectors: Vectors, lengths: NDArray[np.int64]) -> list[Vectors]:
    """Split floats or int8 vectors as `split_rows` does."""
    if isinstance(vectors, Int8Array):
        parts = zip(split_rows(vectors.values, lengths), split_rows(vectors.scales, lengths), strict=True)
        return [Int8Array(values, scales) for values, scales in parts]
    return [*split_rows(vectors, lengths)]


def concatenate(arrays: Sequence[Vectors]) -> Vectors:
    """Concatenate one or more arrays of one kind along their first axis."""
    if isinstance(arrays[0], Int8Array):
        int8 = [one for one in arrays if isinstance(one, Int8Array)]
        return Int8Array(np.concatenate([one.values for one in int8]), np.concatenate([one.scales for one in int8]))
    return np.concatenate([one for one in arrays if isinstance(one, np.ndarray)])
