"""MaxSim equals the formula of ColBERT, one pair of vectors at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import max_sim


@given(st.integers(1, 5), st.lists(st.integers(0, 7), max_size=6), st.integers(0, 99))
def test_a_score_sums_the_largest_product_of_each_vector_of_the_query(n: int, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, *documents = (rng.standard_normal((count, 4)) for count in (n, *lengths))
    scores = max_sim(query, documents)
    expected = [sum(max((sum(q * d) for d in each), default=-np.inf) for q in query) for each in documents]
    np.testing.assert_allclose(scores, np.array(expected, np.float32), rtol=1e-5, atol=1e-5)
    assert scores.dtype == np.float32


@pytest.mark.parametrize(
    ("query", "documents"),
    [
        (np.ones((1, 2, 3)), [np.ones((2, 3))]),
        (np.ones((2, 3)), np.ones((2, 3))),
        (np.ones((2, 3)), [np.ones((2, 2, 3))]),
        (np.ones((2, 3)), [np.ones((2, 4))]),
        (np.ones((2, 3)), [[]]),
    ],
)
def test_other_shapes_are_refused(query: Any, documents: Any) -> None:
    with pytest.raises(ValueError, match=r"shape|matmul"):
        max_sim(query, documents)
