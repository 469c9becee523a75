"""Answers in a text, from the scores of a model of extractive question answering."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Answer(NamedTuple):
    """A part of a text that answers a question.

    Attributes:
        begin: its first code point in the text.
        end: the code point after its last one.
        score: probability of the answer; those of all answers of any length, and of no answer, add up to at most 1.
        no_answer_score: probability that the text has no answer; compare it with `score`, for models that were trained
            on texts without an answer.
    """

    begin: int
    end: int
    score: float
    no_answer_score: float


def best_answer(token_scores: ArrayLike, offsets: ArrayLike, max_tokens: int = 15) -> Answer:
    """Return the most probable answer in the second text of a pair of a question and a text.

    An answer from token i to token j has the probability P_start(i) · P_end(j) (https://arxiv.org/abs/1810.04805,
    section 4.2). The first token stands for no answer (section 4.3).

    Args:
        token_scores: the logits of the start and the end of each token, [n, 2], from `token_scores` of `classify`.
        offsets: the positions of the tokens in the text, [n, 2], from `offsets` of the same result.
        max_tokens: most tokens of an answer.

    Raises:
        ValueError: an array has another shape or is not finite, `max_tokens` is below 1, or no token is in the text,
            because the text is empty or lost all tokens, or because the pair failed.
    """
    logits, positions = np.asarray(token_scores, np.float64), np.asarray(offsets, np.int64)
    n = len(logits)
    if not logits.shape == positions.shape == (n, 2) or not np.isfinite(logits).all() or max_tokens < 1:
        raise ValueError(
            f"token_scores has the shape {[*logits.shape]}, offsets {[*positions.shape]}, and max_tokens is "
            f"{max_tokens}: give finite numbers [n, 2], positions [n, 2], and at least 1 token"
        )
    in_text = positions[:, 0] < positions[:, 1]
    if not in_text.any():
        raise ValueError("no token is in the second text of the pair: the text is empty, was cut off, or failed")
    candidates = in_text.copy()
    candidates[0] = True
    starts, ends = (_log_probabilities(column, candidates) for column in logits.T)
    best, first, last = -np.inf, 0, 0
    for further in range(min(max_tokens, n)):
        allowed = in_text[: n - further] & in_text[further:]
        sums = np.where(allowed, starts[: n - further] + ends[further:], -np.inf)
        place = int(sums.argmax())
        if sums[place] > best:
            best, first, last = float(sums[place]), place, place + further
    return Answer(
        int(positions[first, 0]), int(positions[last, 1]), float(np.exp(best)), float(np.exp(starts[0] + ends[0]))
    )


def _log_probabilities(logits: NDArray[np.float64], candidates: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the logarithms of the softmax of the candidates; those of other tokens mean nothing."""
    largest = logits[candidates].max()
    logarithms: NDArray[np.float64] = logits - largest - np.log(np.exp(logits[candidates] - largest).sum())
    return logarithms
