"""Measure how many sentences have the same nearest neighbour in int8 as in float32.

A trained model should keep at least `PROMISED_SHARE` of the neighbours.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.parity import Sequence
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.numeric_tolerances import normalize_pooled
from headwaiter_server.runtime.packing import pack

# Promised in docs/numerics.md.
PROMISED_SHARE = 0.95
_BATCH_TOKENS = 512


def same_nearest_neighbour(float32: Path, int8: Path, sequences: list[Sequence]) -> float:
    """Return the share of sequences whose nearest neighbour by cosine is the same in both graphs."""
    expected, actual = (_nearest(_pooled_vectors(path, sequences)) for path in (float32, int8))
    return float((expected == actual).mean())


def _pooled_vectors(path: Path, sequences: list[Sequence]) -> NDArray[np.float32]:
    """Return the pooled vectors of the sequences, of unit length, [sequences, width]."""
    graph = EncoderGraph.open(path, "cpu")
    order = np.argsort([len(sequence) for sequence in sequences], kind="stable")
    ends = np.cumsum([len(sequences[i]) for i in order])
    cuts = [0, *np.flatnonzero(np.diff(ends // _BATCH_TOKENS)) + 1, len(order)]
    pooled = [graph.run(pack([sequences[i] for i in order[a:b]]), hidden=False).pooled for a, b in pairwise(cuts)]
    vectors = normalize_pooled(np.concatenate([each for each in pooled if each is not None]), normalized=True)
    return vectors[np.argsort(order)]


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of each vector's nearest other vector."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest
