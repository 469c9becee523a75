"""The score of late interaction, for models that give each text several vectors, such as ColBERT."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def max_sim(query: ArrayLike, documents: Sequence[ArrayLike]) -> NDArray[np.float32]:
    """Return the score of each document for a query: Σ_i max_j q_i · d_j.

    Formula: https://arxiv.org/abs/2004.12832, equation 3.

    Args:
        query: the vectors of the query, [n, width], such as `hidden[0]` of a result.
        documents: the vectors of each document, [m, width], such as `hidden` of a result.

    Returns:
        Scores [documents]. A document without vectors, [0, width], has the score −∞.

    Raises:
        ValueError: an array has another shape.
    """
    q = _vectors(query)
    scores = ((q @ _vectors(each).T).max(axis=1, initial=-np.inf).sum() for each in documents)
    return np.fromiter(scores, np.float32, len(documents))


def _vectors(given: ArrayLike) -> NDArray[np.float32]:
    vectors = np.asarray(given, np.float32)
    if vectors.ndim != 2:
        raise ValueError(f"the vectors of a text have the shape {[*vectors.shape]}: give an array [n, width] for each")
    return vectors
