"""Compare outputs with PyTorch's float32 outputs, and define the tolerance of each precision."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_BF16, PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_server.runtime.graph import GraphOutputs

# A hidden row is negligible if its norm is at most this share of the largest row's norm. Rounding errors are
# proportional to the largest rows, so rounding alone may decide the direction of a negligible row. If a row just above
# this limit has an error of 4e-6 × the largest norm, its cosine is 0.99999. float32 errors are several times smaller.
_NEGLIGIBLE_SHARE = 1e-3

# The largest number that fp16 can hold.
FLOAT16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Difference:
    """The difference between a graph's outputs and PyTorch's.

    Attributes:
        pooled_max_abs: largest absolute difference of a value in the pooled vectors; 0 without pooling.
        hidden_max_abs: largest absolute difference of a value in the hidden rows; 0 without rows.
        pooled_max_relative: `pooled_max_abs` / largest magnitude of PyTorch's pooled values.
        hidden_max_relative: `hidden_max_abs` / largest magnitude of PyTorch's hidden values.
        min_cosine: smallest cosine between a pooled vector and PyTorch's; between hidden rows without pooling; 1 for
            logits alone.
        mean_cosine: mean of the same cosines.
        hidden_min_cosine: smallest cosine between a hidden row and PyTorch's, without negligible rows. A row is
            negligible if the norms of PyTorch's row and the graph's are at most 1e-3 × that of PyTorch's largest row.
            The limit is relative, so a model whose outputs are all tiny is checked like any other.
        logits_max_abs: largest absolute difference of a logit; 0 without a head.
        logits_max_relative: `logits_max_abs` / largest magnitude of PyTorch's logits.
    """

    pooled_max_abs: float
    hidden_max_abs: float
    pooled_max_relative: float
    hidden_max_relative: float
    min_cosine: float
    mean_cosine: float
    hidden_min_cosine: float = 1.0
    logits_max_abs: float = 0.0
    logits_max_relative: float = 0.0

    def published(self) -> dict[str, float]:
        """Return the measures that have a field in replies and in `parity.json`."""
        return {name: value for name, value in asdict(self).items() if name != "hidden_min_cosine"}


@dataclass(frozen=True)
class Tolerance:
    """The largest differences from PyTorch that a precision allows; None for no limit.

    Attributes:
        min_cosine: smallest cosine allowed between a pooled vector and PyTorch's; between hidden rows without pooling.
        hidden_min_cosine: smallest cosine allowed between a hidden row and PyTorch's, without negligible rows.
        max_relative: limit of both relative differences. It refuses tiny outputs of a wrong scale, which have small
            absolute differences and a cosine of 1.
        pooled: limit of the absolute or the relative difference of pooled vectors, whichever is smaller. The relative
            difference is the smaller one if PyTorch's largest value exceeds 1.
        hidden: the same limit for hidden rows.
        logits: the same limit for logits. No cosine checks them: it would say little about one or two numbers.
    """

    min_cosine: float
    hidden_min_cosine: float
    max_relative: float
    pooled: float | None = None
    hidden: float | None = None
    logits: float | None = None


TOLERANCES: dict[Precision, Tolerance] = {
    PRECISION_FP32: Tolerance(0.99999, 0.99999, max_relative=1e-3, pooled=1e-5, hidden=1e-4, logits=1e-4),
    # The others promise the direction of pooled vectors. Their limits for hidden rows and for relative differences are
    # loose: they refuse wrong rows, not rounded rows. Logits decide an order or a class, so their limits are tight.
    PRECISION_FP16: Tolerance(0.9999, 0.99, max_relative=0.5, logits=0.02),
    PRECISION_BF16: Tolerance(0.9995, 0.95, max_relative=0.5, logits=0.05),
    PRECISION_INT8: Tolerance(0.99, 0.9, max_relative=0.5, logits=0.1),
}


def difference(actual: GraphOutputs, expected: GraphOutputs) -> Difference:
    """Return the difference between a graph's outputs and PyTorch's.

    Outputs that are empty, not finite, or of different shapes have an infinite difference and a cosine of −1.

    Args:
        actual: outputs of the graph, pooled [B, width] after `normalize_pooled` and hidden [T, width].
        expected: outputs of PyTorch, of the same shapes.
    """
    # If only one side has an output, compare it with an empty array: the difference is infinite.
    nothing = np.empty(0, np.float32)
    hidden_max_abs = hidden_max_relative = 0.0
    hidden_cosines = np.ones(1)
    if actual.hidden is not None or expected.hidden is not None:
        hidden, expected_hidden = (nothing if each.hidden is None else each.hidden for each in (actual, expected))
        hidden_max_abs, hidden_max_relative = largest_differences(hidden, expected_hidden)
        hidden_cosines = _cosines(hidden, expected_hidden, _NEGLIGIBLE_SHARE)
    pooled_max_abs = pooled_max_relative = 0.0
    cosines = hidden_cosines
    if actual.pooled is not None or expected.pooled is not None:
        pooled, expected_pooled = (nothing if each.pooled is None else each.pooled for each in (actual, expected))
        pooled_max_abs, pooled_max_relative = largest_differences(pooled, expected_pooled)
        cosines = _cosines(pooled, expected_pooled)
    logits_max_abs = logits_max_relative = 0.0
    if actual.logits is not None or expected.logits is not None:
        logits, expected_logits = (
            np.concatenate(each.logits or [np.empty((0, 0), np.float32)]) for each in (actual, expected)
        )
        logits_max_abs, logits_max_relative = largest_differences(logits, expected_logits)
    return Difference(
        pooled_max_abs,
        hidden_max_abs,
        pooled_max_relative,
        hidden_max_relative,
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        hidden_min_cosine=float(hidden_cosines.min()),
        logits_max_abs=logits_max_abs,
        logits_max_relative=logits_max_relative,
    )


def violation(measured: Difference, precision: Precision) -> str | None:
    """Describe the first difference that exceeds the tolerance of a precision; return None if no difference does."""
    tolerance = TOLERANCES[precision]
    if not np.isfinite([measured.pooled_max_abs, measured.hidden_max_abs, measured.logits_max_abs]).all():
        return "its outputs or PyTorch's are not finite, or their shapes differ"
    for name, absolute, relative, limit in (
        ("pooled", measured.pooled_max_abs, measured.pooled_max_relative, tolerance.pooled),
        ("hidden", measured.hidden_max_abs, measured.hidden_max_relative, tolerance.hidden),
        ("logits", measured.logits_max_abs, measured.logits_max_relative, tolerance.logits),
    ):
        smaller = min(absolute, relative)
        if limit is not None and not smaller <= limit:
            return f"{name} outputs differ from PyTorch's by {smaller:.2e}, more than {limit:g}"
        if not relative <= tolerance.max_relative:
            return (
                f"{name} outputs differ from PyTorch's by {relative:.2e} of PyTorch's largest value, more than "
                f"{tolerance.max_relative:g}"
            )
    for vectors, cosine, least in (
        ("vectors", measured.min_cosine, tolerance.min_cosine),
        ("hidden rows", measured.hidden_min_cosine, tolerance.hidden_min_cosine),
    ):
        if not cosine >= least:
            return f"the cosine of {vectors} to PyTorch is {cosine:.6f}, less than {least}"
    return None


def largest_differences(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> tuple[float, float]:
    """Return max |actual − expected|, and this maximum / max |expected|.

    Both are infinite if a value of `actual` or `expected` is not finite, if their shapes differ, or if they are empty.
    """
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not _comparable(exact, reference):
        return float("inf"), float("inf")
    absolute = float(np.abs(exact - reference).max())
    return absolute, absolute / max(float(np.abs(reference).max()), 1e-300)


def smallest_cosine(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Return the smallest cosine of corresponding vectors [..., width], without vectors as short as negligible rows."""
    return float(_cosines(actual, expected, _NEGLIGIBLE_SHARE).min())


def _cosines(
    actual: NDArray[np.generic], expected: NDArray[np.generic], negligible_share: float = 0.0
) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors; [−1] for arrays that `largest_differences` cannot compare.

    The cosine is 1 for equal vectors, and for a pair whose norms are both at most `negligible_share` × the largest norm
    in `expected`.
    """
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    if not _comparable(exact, reference):
        return np.array([-1.0])
    norms, reference_norms = np.linalg.norm(exact, axis=-1), np.linalg.norm(reference, axis=-1)
    negligible = np.maximum(norms, reference_norms) <= negligible_share * reference_norms.max()
    # Vectors are scaled before the product, because the product of two tiny norms would underflow.
    cosines = (_unit(exact, norms) * _unit(reference, reference_norms)).sum(-1)
    return np.where(negligible | (exact == reference).all(-1), 1.0, cosines)


def _unit(vectors: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.where(norms > 0, norms, 1.0)[..., None]


def _comparable(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    """Return whether two arrays have the same shape, are not empty, and are finite."""
    # numpy would broadcast an array of one row to the rows of the other array.
    if actual.shape != expected.shape or actual.size == 0:
        return False
    return bool(np.isfinite(actual).all() and np.isfinite(expected).all())
