"""Pool hidden rows in numpy, where a request wants another pooling than the graph's, or some rows left out."""

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
    """Return the pooled vector [width] of one sequence.

    Args:
        rows: the sequence's hidden rows [n, width], in any precision.
        pooling: a key of `POOLINGS`.
        skipped: the number of leading rows to leave out; the last row is never left out.
    """
    pooled_rows = rows[min(skipped, len(rows) - 1) :].astype(np.float32, copy=False)
    return POOLINGS[pooling](pooled_rows).astype(np.float32, copy=False)
