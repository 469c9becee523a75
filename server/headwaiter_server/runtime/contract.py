"""The numeric contract: how far an answer may be from PyTorch in float32."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, Precision
from headwaiter_server.runtime.graph import Outputs


@dataclass(frozen=True)
class Difference:
    """Largest differences between a graph's answers and PyTorch's.

    Attributes:
        pooled_max_abs: over pooled vectors, relative to their scale; 0 without pooling.
        hidden_max_abs: over hidden vectors, relative to their scale.
        min_cosine: smallest cosine between a vector and PyTorch's, pooled where there is pooling, else hidden.
    """

    pooled_max_abs: float
    hidden_max_abs: float
    min_cosine: float


@dataclass(frozen=True)
class Limits:
    """What the contract allows; None where it says nothing."""

    pooled_max_abs: float | None = None
    hidden_max_abs: float | None = None
    min_cosine: float | None = None


CONTRACT: dict[Precision, Limits] = {
    PRECISION_FP32: Limits(pooled_max_abs=1e-5, hidden_max_abs=1e-4),
    PRECISION_FP16: Limits(min_cosine=0.9999),
}


def finish_pooled(pooled: NDArray[np.float32], *, normalized: bool) -> NDArray[np.float32]:
    """Scale pooled vectors [B, width] to unit length where the model says so: v / max(‖v‖₂, 1e-12)."""
    if not normalized:
        return pooled
    exact = pooled.astype(np.float64)  # In float32 the squares of large values are infinite.
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (exact / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def difference(actual: Outputs, expected: Outputs) -> Difference:
    """Compare finished answers to PyTorch's, pooled [B, width] and hidden [T, width].

    A non-finite answer is infinitely far. Absolute differences are divided by max(1, largest expected value), so that
    a model with large outputs is held to the same number of digits.
    """
    assert actual.hidden is not None
    assert expected.hidden is not None
    pooled = 0.0
    vectors = actual.hidden, expected.hidden
    if expected.pooled is not None:
        assert actual.pooled is not None
        pooled = largest_difference(actual.pooled, expected.pooled)
        vectors = actual.pooled, expected.pooled
    return Difference(pooled, largest_difference(actual.hidden, expected.hidden), _min_cosine(*vectors))


def breach(measured: Difference, precision: Precision) -> str | None:
    """Return what breaks the contract of a precision, in words, or None."""
    limits = CONTRACT[precision]
    if not np.isfinite([measured.pooled_max_abs, measured.hidden_max_abs]).all():
        return "its answers are not finite"
    for name in ("pooled_max_abs", "hidden_max_abs"):
        limit = getattr(limits, name)
        if limit is not None and not getattr(measured, name) <= limit:
            return (
                f"{name.partition('_')[0]} answers differ from PyTorch by {getattr(measured, name):.2e}, over {limit:g}"
            )
    if limits.min_cosine is not None and not measured.min_cosine >= limits.min_cosine:
        return f"cosine to PyTorch is {measured.min_cosine:.6f}, under {limits.min_cosine}"
    return None


def largest_difference(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Return the largest |actual − expected| over max(1, largest expected value); infinity for what is not finite."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return float("inf")
    return float(np.abs(exact - reference).max() / max(1.0, np.abs(reference).max()))


def _min_cosine(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(exact).all():
        return -1.0
    lengths = np.linalg.norm(exact, axis=-1) * np.linalg.norm(reference, axis=-1)
    return float(((exact * reference).sum(-1) / np.maximum(lengths, 1e-300)).min())
