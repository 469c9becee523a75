"""Compare the time of `max_sim` with that of sentence-transformers' MaxSim: one query, 1,000 documents.

    python -m bench.studies.max_sim

The query has 32 vectors of width 128, and the documents have 20 to 300, as lists of numpy arrays. Both take turns.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import max_sim

QUERY_VECTORS, WIDTH, DOCUMENTS = 32, 128, 1000
ROUNDS = 15


def unit_vectors(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return random vectors of unit length."""
    vectors = rng.standard_normal((count, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def main() -> None:
    """Print the times."""
    from sentence_transformers.util import maxsim

    rng = np.random.default_rng(0)
    query = unit_vectors(rng, QUERY_VECTORS)
    documents = [unit_vectors(rng, int(count)) for count in rng.integers(20, 301, DOCUMENTS)]
    ways: dict[str, Callable[[], Any]] = {
        "max_sim": lambda: max_sim(query, documents),
        "sentence-transformers": lambda: maxsim([query], documents)[0].numpy(),
    }
    # The formula, in float64 and for one pair of vectors at a time.
    expected = np.array([sum((each.astype(float) @ q).max() for q in query.astype(float)) for each in documents])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            begin = time.perf_counter()
            found = way()
            seconds[name].append(time.perf_counter() - begin)
            assert np.abs(found - expected).max() < 1e-4, name
    for name, times in seconds.items():
        print(f"{name}: {1000 * np.median(times):.1f} ms")


if __name__ == "__main__":
    main()
