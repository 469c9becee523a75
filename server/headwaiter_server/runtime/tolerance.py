"""The numeric contract: how far an answer may be from PyTorch in float32."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_server.runtime.graph import Outputs


@dataclass(frozen=True)
class Difference:
    """How far a graph's answers are from PyTorch's.

    Attributes:
        pooled_max_abs: largest difference of a value of a pooled vector; 0 without pooling.
        hidden_max_abs: the same of the hidden rows.
        pooled_max_relative: `pooled_max_abs` by the largest magnitude among PyTorch's pooled values.
        hidden_max_relative: `hidden_max_abs` by the largest magnitude among PyTorch's hidden values.
        min_cosine: smallest cosine between a vector and PyTorch's, pooled where there is pooling, else hidden.
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
    """What the contract allows; None where it says nothing.

    Attributes:
        pooled: the smaller of the absolute and the relative difference, so that a model with outputs beyond 1 is held
            to the same number of digits.
        hidden: the same of the hidden rows.
        min_cosine: of every vector.
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
    """Scale pooled vectors [B, width] to unit length where the model says so: v / max(‖v‖₂, 1e-12)."""
    if not normalized:
        return pooled
    exact = pooled.astype(np.float64)  # In float32 the squares of large values are infinite.
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (exact / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def difference(actual: Outputs, expected: Outputs) -> Difference:
    """Compare finished answers to PyTorch's, pooled [B, width] and hidden [T, width].

    An answer that is not finite is infinitely far, and in the opposite direction.
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
    """Return what breaks the contract of a precision, in words, or None."""
    limits = TOLERANCES[precision]
    if not np.isfinite([measured.pooled_max_abs, measured.hidden_max_abs]).all():
        return "its answers are not finite"
    for name, absolute, relative, limit in (
        ("pooled", measured.pooled_max_abs, measured.pooled_max_relative, limits.pooled),
        ("hidden", measured.hidden_max_abs, measured.hidden_max_relative, limits.hidden),
    ):
        smaller = min(absolute, relative)
        if limit is not None and not smaller <= limit:
            return f"{name} answers differ from PyTorch by {smaller:.2e}, over {limit:g}"
    if limits.min_cosine is not None and not measured.min_cosine >= limits.min_cosine:
        return f"cosine to PyTorch is {measured.min_cosine:.6f}, under {limits.min_cosine}"
    return None


def largest_differences(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> tuple[float, float]:
    """Return the largest |actual − expected|, and what it is of the largest |expected|; infinity where not finite."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return float("inf"), float("inf")
    absolute = float(np.abs(exact - reference).max())
    return absolute, absolute / max(float(np.abs(reference).max()), 1e-300)


def _cosines(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return one cosine a vector; that of two vectors of zeros, which point nowhere, is 1."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return np.array([-1.0])
    lengths = np.linalg.norm(exact, axis=-1) * np.linalg.norm(reference, axis=-1)
    cosines = (exact * reference).sum(-1) / np.maximum(lengths, 1e-300)
    return np.where((exact == reference).all(-1), 1.0, cosines)
