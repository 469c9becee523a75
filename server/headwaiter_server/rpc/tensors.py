"""Writes arrays as messages."""

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import InvalidInput

DTYPES = (pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT16, pb.DATA_TYPE_INT8)
_STEPS = 127


def fill(tensor: pb.Tensor, values: NDArray[np.generic], dtype: pb.DataType) -> None:
    """Write an array [..., width] of floats in one of `DTYPES`.

    Raises:
        InvalidInput: float16 cannot hold a value.
    """
    cast: NDArray[np.generic]
    if dtype == pb.DATA_TYPE_INT8:
        cast, scales = quantize_rows(values.astype(np.float32, copy=False))
        tensor.row_scales.extend(scales.tolist())
    else:
        cast = _halve(values) if dtype == pb.DATA_TYPE_FLOAT16 else values.astype("<f4", copy=False)
    tensor.dtype = dtype
    tensor.shape.extend(cast.shape)
    tensor.data = cast.tobytes()


def quantize_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round each row of [n, width] to steps of a 127th of its largest magnitude, and return the steps [n] too."""
    scales = np.abs(rows).max(axis=-1, initial=0.0) / np.float32(_STEPS)
    # A row of zeros stays one; so becomes a row of numbers that float32 has no 127th of.
    steps = np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
    return np.rint(steps).clip(-_STEPS, _STEPS).astype(np.int8), scales


def _halve(values: NDArray[np.generic]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.astype("<f2", copy=False)
    if not np.isfinite(half).all():
        raise InvalidInput("output.dtype: the answer is beyond FLOAT16's range; ask for FLOAT32", field="output.dtype")
    return half
