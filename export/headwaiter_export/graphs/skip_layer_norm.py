"""The rounding errors of SkipLayerNormalization on CUDA, computed in numpy as ONNX Runtime's kernel computes them.

The kernel adds a residual and normalises the sum in one pass over memory. One pass gives the variance only as E[x²] −
E[x]², a small difference of large numbers if the mean of a row is large: at |mean| / deviation = 30, a value of the
result is wrong by up to 6e-4. The variance of a row of equal values can even come out negative, which gives NaN.
LayerNormalization subtracts the mean first (Welford's algorithm) and has no such errors, but needs another pass.

Source: ONNX Runtime at commit 89b01b406, contrib_ops/cuda/bert: the choice of a kernel and the partial sums in
skip_layer_norm_impl.cu, the statistics in layer_norm.cuh. The statistics of float16 rows are float32 too.
"""

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES

Rows = NDArray[np.float32] | NDArray[np.float16]
_WARP_THREADS = 32
# Rows of at most _NARROW_WIDTH values have a block of their own kind. Rows above the last width, and wider rows whose
# width is no multiple of 8, have blocks whose threads take more values each.
_VECTORIZED_WIDTHS = (320, 384, 640, 768, 1024, 1280, 2048, 4096, 5120, 8192)
_NARROW_WIDTH = 128


def can_fuse_norms(error: float) -> bool:
    """Return whether a graph may use SkipLayerNormalization, given the largest error that `fused_error` found.

    One norm is allowed a quarter of the tolerance of pooled vectors in fp32, because a model has many norms, and its
    requests differ from the rows on which the export measures.
    """
    tolerance = TOLERANCES[PRECISION_FP32].pooled
    assert tolerance is not None
    return error <= tolerance / 4


def fused_error(rows: Rows, scale: Rows, shift: Rows, epsilon: float) -> float:
    """Return the largest error of the operator for any of the rows [R, d], divided by the largest value of its result.

    Infinite if a result is not finite.
    """
    exact = rows.astype(np.float64)
    deviation = np.sqrt(exact.var(1, keepdims=True) + epsilon)
    expected = (exact - exact.mean(1, keepdims=True)) / deviation * scale.astype(np.float64) + shift.astype(np.float64)
    errors = np.abs(normalize_fused(rows, scale, shift, epsilon) - expected).max(1)
    relative = errors / np.maximum(np.abs(expected).max(1), np.finfo(np.float32).tiny)
    return float(np.where(np.isfinite(relative), relative, np.inf).max())


def normalize_fused(rows: Rows, scale: Rows, shift: Rows, epsilon: float) -> Rows:
    """Return what the kernel computes from rows [R, d] that already contain the residual and the bias.

    The order of additions is the kernel's. A GPU may round a product and its addition once instead of twice, which does
    not change the size of the errors.
    """
    x = rows.astype(np.float32)
    parts = _values_of_threads(x)
    scaled = np.float32(1) / np.float32(x.shape[1]) * parts
    mean = _sum_over_threads(_sum_in_order(scaled, axis=2))
    mean_square = _sum_over_threads(_sum_in_order(scaled * parts, axis=2))
    with np.errstate(invalid="ignore", divide="ignore"):  # A negative variance gives NaN, as on the GPU.
        inverse_deviation = np.float32(1) / np.sqrt(mean_square - mean * mean + np.float32(epsilon))
    centred = scale.astype(np.float32) * (x - mean[:, None])
    normalized = centred * inverse_deviation[:, None] + shift.astype(np.float32)
    return normalized.astype(np.float16) if rows.dtype == np.float16 else normalized.astype(np.float32, copy=False)


def _values_of_threads(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Arrange rows [R, d] as the values of each thread of a block, [R, threads, values], padded with zeros."""
    width = x.shape[1]
    if width <= _NARROW_WIDTH:
        values = 4 if width % 4 == 0 else 1
        threads = _NARROW_WIDTH // values
    elif width % 8 == 0 and width <= _VECTORIZED_WIDTHS[-1]:
        values = 8
        threads = next(each for each in _VECTORIZED_WIDTHS if width <= each) // values
    else:
        # Neighbouring threads take neighbouring values, again and again until the row ends.
        threads = 256
        values = -(-width // threads)
        return _padded(x, threads * values).reshape(-1, values, threads).swapaxes(1, 2)
    return _padded(x, threads * values).reshape(-1, threads, values)


def _sum_over_threads(partial: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum the partial sums [R, threads] as CUB's BlockReduce does: a tree in each warp, then the warps in order."""
    threads = -(-partial.shape[1] // _WARP_THREADS) * _WARP_THREADS
    lanes = _padded(partial, threads).reshape(len(partial), -1, _WARP_THREADS)
    while lanes.shape[2] > 1:
        lanes = lanes[..., ::2] + lanes[..., 1::2]
    return _sum_in_order(lanes[..., 0], axis=1)


def _sum_in_order(values: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Sum along an axis, one value after another; numpy's own sum would add pairs."""
    return reduce(np.add, np.moveaxis(values, axis, 0))


def _padded(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return np.pad(x, ((0, 0), (0, width - x.shape[1])))
