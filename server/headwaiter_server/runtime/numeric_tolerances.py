"""Compare outputs with PyTorch's float32 outputs, and define the tolerance of each precision."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_server.runtime.graph import Outputs


@dataclass(frozen=True)
class Difference:
    """The difference between a graph's outputs and PyTorch's.

    Attributes:
        pooled_max_abs: largest absolute difference of a value in the pooled vectors; 0 without pooling.
        hidden_max_abs: largest absolute difference of a value in the hidden rows.
        pooled_max_relative: `pooled_max_abs` / largest magnitude of PyTorch's pooled values.
        hidden_max_relative: `hidden_max_abs` / largest magnitude of PyTorch's hidden values.
        min_cosine: smallest cosine between a pooled vector and PyTorch's; of hidden rows for a model without pooling.
        mean_cosine: mean of the same cosines.
    """

    pooled_max_abs: float
    hidden_max_abs: float
    pooled_max_relative: float
    hidden_max_relative: float
    min_cosine: float
    mean_cosine: float


@dataclass(frozen=True)
class Tolerance:
    """The largest differences from PyTorch that a precision allows; None for no limit.

    Attributes:
        pooled: limit of the absolute or the relative difference of pooled vectors, whichever is smaller. The relative
            difference asks for the same number of correct digits in outputs above 1.
        hidden: the same limit for hidden rows.
        min_cosine: smallest cosine allowed between any vector and PyTorch's.
    """

    pooled: float | None = None
    hidden: float | None = None
    min_cosine: float | None = None


TOLERANCES: dict[Precision, Tolerance] = {
    PRECISION_FP32: Tolerance(pooled=1e-5, hidden=1e-4),
    PRECISION_FP16: Tolerance(min_cosine=0.9999),
    PRECISION_INT8: Tolerance(min_cosine=0.99),
}


def normalize_pooled(pooled: NDArray[np.float32], *, normalized: bool) -> NDArray[np.float32]:
    """Scale pooled vectors [B, width] to unit length, v / max(‖v‖₂, 1e-12), if `normalized`."""
    if not normalized:
        return pooled
    exact = pooled.astype(np.float64)  # In float32 the squares of large values overflow to infinity.
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (exact / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def difference(actual: Outputs, expected: Outputs) -> Difference:
    """Return the difference between a graph's outputs and PyTorch's.

    Outputs that are not finite have an infinite difference and the cosine −1.

    Args:
        actual: outputs of the graph, pooled [B, width] after `normalize_pooled` and hidden [T, width].
        expected: outputs of PyTorch, of the same shapes.
    """
    assert actual.hidden is not None
    assert expected.hidden is not None
    pooled_max_abs = pooled_max_relative = 0.0
    vectors = actual.hidden, expected.hidden
    if expected.pooled is not None:
        assert actual.pooled is not None
        vectors = actual.pooled, expected.pooled
        pooled_max_abs, pooled_max_relative = largest_differences(*vectors)
    hidden_max_abs, hidden_max_relative = largest_differences(actual.hidden, expected.hidden)
    cosines = _cosines(*vectors)
    return Difference(
        pooled_max_abs,
        hidden_max_abs,
        pooled_max_relative,
        hidden_max_relative,
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
    )


def violation(measured: Difference, precision: Precision) -> str | None:
    """Describe the first difference that exceeds the tolerance of a precision; return None if no difference does."""
    tolerance = TOLERANCES[precision]
    if not np.isfinite([measured.pooled_max_abs, measured.hidden_max_abs]).all():
        return "its outputs are not finite"
    for name, absolute, relative, limit in (
        ("pooled", measured.pooled_max_abs, measured.pooled_max_relative, tolerance.pooled),
        ("hidden", measured.hidden_max_abs, measured.hidden_max_relative, tolerance.hidden),
    ):
        smaller = min(absolute, relative)
        if limit is not None and not smaller <= limit:
            return f"{name} outputs differ from PyTorch's by {smaller:.2e}, more than {limit:g}"
    if tolerance.min_cosine is not None and not measured.min_cosine >= tolerance.min_cosine:
        return f"the cosine to PyTorch is {measured.min_cosine:.6f}, less than {tolerance.min_cosine}"
    return None


def largest_differences(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> tuple[float, float]:
    """Return max |actual − expected|, and the same / max |expected|; both infinite if `actual` is not finite."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return float("inf"), float("inf")
    absolute = float(np.abs(exact - reference).max())
    return absolute, absolute / max(float(np.abs(reference).max()), 1e-300)


def _cosines(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors, 1 for two vectors of zeros; [−1] if `actual` is not finite."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return np.array([-1.0])
    lengths = np.linalg.norm(exact, axis=-1) * np.linalg.norm(reference, axis=-1)
    cosines = (exact * reference).sum(-1) / np.maximum(lengths, 1e-300)
    return np.where((exact == reference).all(-1), 1.0, cosines)
