"""What is added to the scores of attention: masks, windows, and biases by distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwaiter_export.choices import Mask

# The score of a masked key: the lowest float32. A real score can be lower than ONNX Runtime's default of −10,000.
MASKED_SCORE = torch.finfo(torch.float32).min


@dataclass(frozen=True, eq=False)
class ScoreTerms:
    """What one layer adds to the score of each query and key.

    The methods take the positions of queries and keys in their sequences; None stands for all positions 0 to N − 1.

    Attributes:
        pattern: which tokens of its sequence a token attends to.
        window: largest distance from a query to the keys that it attends to; None for any distance.
        table: the numbers of each head for the distances −(M − 1) to M − 1 from query to key, [H, 2M − 1], or None.
        slopes: the number of each head that is multiplied by the distance and subtracted, H numbers or none. There are
            slopes or a table, not both.
    """

    pattern: Mask = Mask.NONE
    window: int | None = None
    table: Tensor | None = None
    slopes: tuple[float, ...] = ()

    @property
    def have_bias(self) -> bool:
        """Whether a number that depends on the distance is added."""
        return self.table is not None or bool(self.slopes)

    @property
    def are_zero(self) -> bool:
        """Whether nothing is added: all tokens attend to all tokens, whatever their distance."""
        return self.pattern is Mask.NONE and self.window is None and not self.have_bias

    def allowed_pairs(self, tokens: int, queries: Tensor | None = None, keys: Tensor | None = None) -> Tensor | None:
        """Return whether each query attends to each key, bool [..., n, K]; None if all attend to all.

        `tokens` is N; `queries` are positions [..., n], and `keys` positions [K].
        """
        if self.pattern is Mask.NONE and self.window is None:
            return None
        query = (torch.arange(tokens) if queries is None else queries)[..., None]
        key = torch.arange(tokens) if keys is None else keys
        near = None if self.window is None else (key - query).abs() <= self.window
        if self.pattern is Mask.NONE:
            return near
        pairs = key <= query if self.pattern is Mask.CAUSAL else key != query
        return pairs if near is None else pairs & near

    def mask(self, token_mask: Tensor, queries: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return the mask to add to the scores, float32 [B, 1, 1 or n, K]; float16 cannot hold MASKED_SCORE.

        `token_mask` says which keys are tokens, bool [B, K]; `queries` are positions [B, n], and `keys` positions [K].
        """
        tokens = token_mask[:, None, None, :]
        pairs = self.allowed_pairs(token_mask.shape[1], None if queries is None else queries[:, None], keys)
        return torch.where(tokens if pairs is None else tokens & pairs, 0.0, MASKED_SCORE)

    def bias(self, tokens: int, queries: Tensor | None = None, keys: Tensor | None = None) -> Tensor | None:
        """Return the number that each head adds to the score of each query and key, [H, n, K]; None without a bias.

        `tokens` is N; `queries` are positions [n], and `keys` positions [K]. A bias from slopes is float32, because
        float16 cannot hold all distances.
        """
        if not self.have_bias:
            return None
        query = torch.arange(tokens) if queries is None else queries
        distances = (torch.arange(tokens) if keys is None else keys) - query[:, None]
        if self.table is None:
            return torch.tensor(self.slopes)[:, None, None] * -distances.abs()
        # On CUDA, N is rounded up, perhaps beyond M; no token attends to these keys.
        columns = (distances + self.table.shape[1] // 2).clamp(0, self.table.shape[1] - 1)
        return self.table.index_select(1, columns.flatten()).view(-1, *columns.shape)
