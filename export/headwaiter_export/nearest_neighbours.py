"""Measure how many sentences have the same nearest neighbour in int8 as in float32.

A trained model should keep at least `PROMISED_SHARE` of the neighbours.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.parity import Sequence, batches_by_length
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.numeric_tolerances import normalize_pooled
from headwaiter_server.runtime.packing import pack

# Promised in docs/numerics.md.
PROMISED_SHARE = 0.95


def same_nearest_neighbour(float32: Path, int8: Path, sequences: list[Sequence]) -> float:
    """Return the share of sequences whose nearest neighbour by cosine is the same in both graphs."""
    expected, actual = (nearest(_pooled_vectors(path, sequences)) for path in (float32, int8))
    return float((expected == actual).mean())


def _pooled_vectors(path: Path, sequences: list[Sequence]) -> NDArray[np.float32]:
    """Return the pooled vectors of the sequences, sorted by length, [sequences, width]."""
    graph = EncoderGraph.open(path, "cpu")
    pooled = [graph.run(pack(batch), hidden=False).pooled for batch in batches_by_length(sequences)]
    return np.concatenate([each for each in pooled if each is not None])


def nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest other vector by cosine of each of the vectors [n, width]."""
    vectors = normalize_pooled(vectors, normalized=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest
