"""Masks and biases of attention that were measured on one sequence, as `ScoreTerms`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.score_terms import ScoreTerms

# PyTorch modules add −10,000 or less to the score of a masked pair. exp(−10,000) is 0 in float32.
_MOST_MASKED = -1e4
# Stands for a masked pair in a table; float16 can hold it.
_MASKED_IN_TABLE = -4e4
# Largest difference, relative to the largest number, between numbers that modules compute for the same distance.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class AddedNumbers:
    """What each head adds to scores, for the distances −(n − 1) to n − 1 from query to key.

    Attributes:
        allowed: whether a query attends to a key at this distance, bool [H or 1, 2n − 1].
        numbers: what is added to their score; 0 for masked pairs, [H or 1, 2n − 1].
    """

    allowed: Tensor
    numbers: Tensor

    @classmethod
    def measured(cls, added: Tensor) -> "AddedNumbers | None":
        """Return the numbers that were added to the scores [H or 1, n, n]; None if the distance does not decide.

        A number of at most −10,000 masks its pair.
        """
        masked = added <= _MOST_MASKED
        numbers = added.float().masked_fill(masked, 0)
        if not masked[:, 1:, 1:].equal(masked[:, :-1, :-1]):
            return None
        if not _are_close(numbers[:, 1:, 1:], numbers[:, :-1, :-1]):
            # What one query adds to the scores of all its keys, and others do not, changes no weight.
            own = numbers.diagonal(dim1=1, dim2=2)[:, :, None]
            numbers = (numbers - (own - own[:, :1])).masked_fill(masked, 0)
            if not _are_close(numbers[:, 1:, 1:], numbers[:, :-1, :-1]):
                return None
        return cls(~_by_distance(masked), _by_distance(numbers))

    @classmethod
    def of_distances(cls, tokens: int, *, is_causal: bool) -> "AddedNumbers":
        """Return what adds nothing, and masks the keys after a query if it is causal."""
        distances = torch.arange(1 - tokens, tokens)[None]
        return cls(distances <= (0 if is_causal else tokens), torch.zeros(distances.shape))

    @property
    def tokens(self) -> int:
        """The number n of rows."""
        return self.allowed.shape[1] // 2 + 1

    def is_same(self, other: "AddedNumbers") -> bool:
        """Return whether both are the same, bit for bit."""
        return self.allowed.equal(other.allowed) and self.numbers.equal(other.numbers)

    def equals(self, other: "AddedNumbers", scale: float = 1.0) -> bool:
        """Return whether both are the same, up to rounding at a scale, for the distances that both have."""
        tokens = min(self.tokens, other.tokens)
        one, two = self.shortened(tokens), other.shortened(tokens)
        return one.allowed.equal(two.allowed) and _are_close(one.numbers, two.numbers, scale)

    def shortened(self, tokens: int) -> "AddedNumbers":
        """Return the numbers for a sequence of fewer tokens."""
        kept = slice(self.tokens - tokens, self.tokens + tokens - 1)
        return AddedNumbers(self.allowed[:, kept], self.numbers[:, kept])

    def terms(self) -> ScoreTerms:
        """Return terms that add the same numbers; a mask that `Mask` and a window do not describe is in their table."""
        found = self._mask() if (self.allowed == self.allowed[0]).all() else None
        if found is None:
            return ScoreTerms(table=self.numbers.masked_fill(~self.allowed, _MASKED_IN_TABLE))
        return ScoreTerms(found.pattern, found.window, self.numbers if self.numbers.any() else None)

    def _mask(self) -> ScoreTerms | None:
        """Return the mask and the window of all heads; None if there is no such mask."""
        allowed, largest = self.allowed[0], self.tokens - 1
        distances = torch.arange(-largest, largest + 1)
        reach = int(distances[allowed].abs().amax()) if allowed.any() else 0
        for pattern in Mask:
            terms = ScoreTerms(pattern, reach if reach < largest else None)
            pairs = terms.allowed_pairs(self.tokens, torch.zeros(1, dtype=torch.int64), distances)
            if allowed.all() if pairs is None else pairs[0].equal(allowed):
                return terms
        return None


def _by_distance(pairs: Tensor) -> Tensor:
    """Return the entries of [H, n, n] for the distances −(n − 1) to n − 1 from row to column, [H, 2n − 1]."""
    return torch.cat((pairs[:, 1:, 0].flip(1), pairs[:, 0]), 1)


def _are_close(one: Tensor, other: Tensor, scale: float = 1.0) -> bool:
    scale = max(1.0, scale, float(other.abs().amax())) if other.numel() else 1.0
    return one.shape == other.shape and bool(((one - other).abs() <= _ROUNDING * scale).all())
