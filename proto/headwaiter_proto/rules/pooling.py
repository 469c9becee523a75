"""The poolings of models and requests: those that the host can compute from hidden rows, and those of graphs alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import (
    POOLING_ATTENTION,
    POOLING_CLS,
    POOLING_CONCATENATED,
    POOLING_LAST,
    POOLING_MAX,
    POOLING_MEAN,
    POOLING_MEAN_SQRT_LEN,
    POOLING_OWN,
    POOLING_PATCH_MEAN,
    POOLING_PREFIX_MEAN,
    POOLING_WEIGHTED_MEAN,
    Pooling,
)

_Rows = NDArray[np.float32]

# The poolings that only the graphs of a model compute.
POOLINGS_OF_GRAPHS = (POOLING_ATTENTION, POOLING_CONCATENATED, POOLING_PREFIX_MEAN, POOLING_PATCH_MEAN, POOLING_OWN)
# Functions of the rows, and of the number of rows that the sequence has before them.
POOLINGS: dict[Pooling, Callable[[_Rows, int], _Rows]] = {
    POOLING_MEAN: lambda rows, _: rows.mean(axis=0, dtype=np.float64),
    POOLING_CLS: lambda rows, _: rows[0],
    POOLING_MAX: lambda rows, _: rows.max(axis=0),
    POOLING_LAST: lambda rows, _: rows[-1],
    POOLING_WEIGHTED_MEAN: lambda rows, before: np.average(rows, axis=0, weights=1.0 + before + np.arange(len(rows))),
    POOLING_MEAN_SQRT_LEN: lambda rows, _: rows.sum(axis=0, dtype=np.float64) / np.sqrt(len(rows)),
}


def pool(rows: NDArray[np.generic], pooling: Pooling, skipped_rows: int = 0) -> NDArray[np.float32]:
    """Return the pooled vector [width] of a sequence's hidden rows [n, width], without the first `skipped_rows` rows.

    If all rows are skipped, the vector is the first row for CLS and zeros for other poolings, as in
    sentence-transformers; for MAX, which has no finite result then, the vector is the last row.
    """
    pooled_rows = rows[skipped_rows:].astype(np.float32, copy=False)
    if not len(pooled_rows):
        only: NDArray[np.generic] = {POOLING_CLS: rows[0], POOLING_MAX: rows[-1]}.get(pooling, np.zeros_like(rows[0]))
        return only.astype(np.float32, copy=False)
    return POOLINGS[pooling](pooled_rows, skipped_rows).astype(np.float32, copy=False)


def normalize_pooled(pooled: NDArray[np.float32], *, normalized: bool) -> NDArray[np.float32]:
    """Scale pooled vectors [B, width] to unit length, v / max(‖v‖₂, 1e-12), if `normalized`."""
    if not normalized:
        return pooled
    exact = pooled.astype(np.float64)  # In float32 the squares of large values overflow to infinity.
    lengths = np.sqrt(np.add.reduce(exact * exact, axis=-1, keepdims=True))
    unit: NDArray[np.float32] = (exact / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
