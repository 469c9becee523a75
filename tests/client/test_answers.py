"""The best answer is the one of the highest probability among all parts of the text."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import best_answer


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.booleans()), max_size=9), st.integers(1, 9))
def test_the_answer_has_the_highest_product_of_probabilities(tokens: list[Any], max_tokens: int) -> None:
    # A first token, which stands for no answer, a token of the question, and at least one token of the text.
    tokens = [(0.5, -0.5, False), (20.0, 20.0, False), (1.0, 1.0, True), *tokens]
    scores = np.array([token[:2] for token in tokens], np.float32)
    offsets = np.array([(10 * i, 10 * i + 3) if token[2] else (0, 0) for i, token in enumerate(tokens)], np.uint32)
    text = [i for i, token in enumerate(tokens) if token[2]]

    def probability(place: int, column: int) -> float:
        powers = [math.exp(scores[i, column]) for i in (0, *text)]
        return math.exp(scores[place, column]) / sum(powers)

    answers = {(i, j): probability(i, 0) * probability(j, 1) for i in text for j in text if 0 <= j - i < max_tokens}
    found = best_answer(scores, offsets, max_tokens)
    assert found.score == pytest.approx(max(answers.values()))
    assert answers[found.begin // 10, (found.end - 3) // 10] == pytest.approx(found.score)
    assert found.no_answer_score == pytest.approx(probability(0, 0) * probability(0, 1))


@pytest.mark.parametrize("scores", [[(900, 900), (0, 0), (-5, 5)], [(0, 0), (-900, 900), (900, -900)]])
def test_an_answer_of_tiny_probability_is_in_the_text(scores: Any) -> None:
    found = best_answer(scores, [(0, 0), (3, 5), (6, 9)])
    assert found.begin >= 3
    assert found.end > found.begin


@pytest.mark.parametrize(
    ("scores", "offsets", "max_tokens"),
    [
        (np.zeros((3, 2)), np.zeros((3, 2)), 15),
        (np.zeros((0, 2)), np.zeros((0, 2)), 15),
        (np.zeros((3, 2)), [(0, 0), (0, 1)], 15),
        (np.zeros((2, 1)), [(0, 0), (0, 1)], 15),
        (np.full((2, 2), np.nan), [(0, 0), (0, 1)], 15),
        (np.zeros((2, 2)), [(0, 0), (0, 1)], 0),
    ],
)
def test_scores_without_an_answer_are_refused(scores: Any, offsets: Any, max_tokens: int) -> None:
    with pytest.raises(ValueError, match=r"second text|shape"):
        best_answer(scores, offsets, max_tokens)
