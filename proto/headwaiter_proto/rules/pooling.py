"""Pool hidden rows on the host, for requests whose pooling differs from the graph's or leaves out the prompt."""

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


def pool(rows: NDArray[np.generic], pooling: Pooling, skipped_rows: int = 0) -> NDArray[np.float32]:
    """Return the pooled vector [width] of a sequence's hidden rows [n, width], without the first `skipped_rows` rows.

    The last row always counts.
    """
    pooled_rows = rows[min(skipped_rows, len(rows) - 1) :].astype(np.float32, copy=False)
    return POOLINGS[pooling](pooled_rows).astype(np.float32, copy=False)
