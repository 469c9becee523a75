"""Pools hidden rows where a graph does not do it: with another pooling than its own, or without some of the rows."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import POOLING_CLS, POOLING_LAST, POOLING_MAX, POOLING_MEAN, Pooling

_Rows = NDArray[np.float32]

POOLINGS: dict[Pooling, Callable[[_Rows], _Rows]] = {
    POOLING_MEAN: lambda rows: rows.mean(axis=0, dtype=np.float64),
    POOLING_CLS: lambda rows: rows[0],
    POOLING_MAX: lambda rows: rows.max(axis=0),
    POOLING_LAST: lambda rows: rows[-1],
}


def pool(rows: NDArray[np.generic], pooling: Pooling, skipped: int = 0) -> NDArray[np.float32]:
    """Return the one vector [width] of a sequence's hidden rows [n, width].

    Args:
        rows: of one sequence, in any precision.
        pooling: of `POOLINGS`.
        skipped: how many of the rows to leave out, the first; the last always counts.
    """
    counted = rows[min(skipped, len(rows) - 1) :].astype(np.float32, copy=False)
    return POOLINGS[pooling](counted).astype(np.float32, copy=False)
