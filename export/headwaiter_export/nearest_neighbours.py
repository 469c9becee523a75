"""Measure how many sentences have the same nearest neighbour in int8 as in PyTorch.

A trained model should keep at least `PROMISED_SHARE` of the neighbours.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.encoder import Encoder
from headwaiter_export.packed_batches import PackedBatches
from headwaiter_export.parity import Sequence
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.numeric_tolerances import normalize_pooled
from headwaiter_server.runtime.packing import pack

# Promised in docs/numerics.md.
PROMISED_SHARE = 0.95


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Sentences in batches, and the nearest neighbour of each sentence in PyTorch, in the order of the batches."""

    batches: list[list[Sequence]]
    expected: NDArray[np.int64]

    @classmethod
    def of(cls, encoder: Encoder, sentences: list[Sequence]) -> "Neighbours | None":
        """Find the neighbours in PyTorch; return None without pooling, or for less than two sentences."""
        if len(sentences) < 2:
            return None
        batches = PackedBatches(encoder.config, sentences)
        pooled = batches.outputs(encoder).pooled
        return None if pooled is None else cls(batches.sequences, nearest(pooled))


def same_nearest_neighbour(int8: Path, neighbours: Neighbours) -> float:
    """Return the share of sentences whose nearest neighbour by cosine in a graph is that in PyTorch."""
    graph = EncoderGraph.open(int8, "cpu", threads=1)
    pooled = [graph.run(pack(batch), hidden=False).pooled for batch in neighbours.batches]
    actual = nearest(np.concatenate([each for each in pooled if each is not None]))
    return float((actual == neighbours.expected).mean())


def nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest other vector by cosine of each of the vectors [n, width]."""
    vectors = normalize_pooled(vectors, normalized=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest
