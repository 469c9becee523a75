"""What changes the scores of attention: a cap, and what is added: masks, windows, and biases that depend on distances.

`multiply_by_distance` is disentangled attention: products of queries and keys with learned vectors of the distances
between them (https://arxiv.org/abs/2006.03654, section 3.1).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwaiter_export.config.choices import Mask

# The score of a masked key: the lowest float32. A real score can be lower than ONNX Runtime's default of −10,000.
MASKED_SCORE = torch.finfo(torch.float32).min


@dataclass(frozen=True, eq=False)
class ScoreTerms:
    """What one layer adds to the score of each query and key, and the cap of scores before anything is added.

    The methods take the positions of queries and keys in their sequences; None stands for all positions 0 to N − 1.

    Attributes:
        pattern: which tokens of its sequence a token attends to.
        window: largest distance from a query to the keys that it attends to; None for any distance.
        table: the numbers of each head for the distances −D to D from query to key, between their positions or their
            places, [H, 2D + 1], or None.
        distance_keys: the vectors that each head multiplies with a query, or with its last n values, for the distances
            −D to D between positions, [H, 2D + 1, head_dim or n], or None.
        distance_queries: the vectors that each head multiplies with a key, for the same distances from key to query.
        slopes: the number of each head that is multiplied by the distance and subtracted, H numbers or none. There are
            slopes or a table, not both.
        places: `EncoderConfig.distance_places`.
        cap: `EncoderConfig.score_cap`.
    """

    pattern: Mask = Mask.NONE
    window: int | None = None
    table: Tensor | None = None
    distance_keys: Tensor | None = None
    distance_queries: Tensor | None = None
    slopes: tuple[float, ...] = field(default=(), kw_only=True)
    places: tuple[int, ...] = field(default=(), kw_only=True)
    cap: float = field(default=0.0, kw_only=True)

    @property
    def have_bias(self) -> bool:
        """Whether a number is added to the scores of pairs that attend to each other."""
        tables = (self.table, self.distance_keys, self.distance_queries)
        return bool(self.slopes) or any(each is not None for each in tables)

    @property
    def depend_on_content(self) -> bool:
        """Whether the terms of a pair depend on its query or key; otherwise they depend only on the two positions."""
        return self.distance_keys is not None or self.distance_queries is not None

    @property
    def need_standard_operators(self) -> bool:
        """Whether PackedMultiHeadAttention cannot compute the scores; `needs_standard_operators` must agree."""
        return self.depend_on_content or self.cap > 0

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

    def mask(self, key_mask: Tensor, queries: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return the mask to add to the scores, float32 [B, 1, 1 or n, K]; float16 cannot hold MASKED_SCORE.

        `key_mask` is True for keys that are attended to, bool [B, K]; `queries` are positions [B, n], and `keys` [K].
        """
        attended = key_mask[:, None, None, :]
        pairs = self.allowed_pairs(key_mask.shape[1], None if queries is None else queries[:, None], keys)
        return torch.where(attended if pairs is None else attended & pairs, 0.0, MASKED_SCORE)

    def by_distance(self, tokens: int, dtype: torch.dtype) -> Tensor:
        """Return the sum of all terms for the distances −(N − 1) to N − 1 from query to key, [1 or H, 2N − 1].

        N is `tokens`. The terms must not depend on content. A distance at which no query attends to a key has the
        number of `_masked`.
        """
        distances = torch.arange(1 - tokens, tokens)
        numbers = torch.zeros(1, 1, dtype=dtype)
        if self.table is not None or self.slopes:
            numbers = self._numbers_by_distance(distances[None])[:, 0].to(dtype)
        allowed = self.allowed_pairs(tokens, torch.zeros(1, dtype=torch.int64), distances)
        return numbers if allowed is None else torch.where(allowed, numbers, _masked(dtype))

    def bias(self, query: Tensor, key: Tensor, *positions: Tensor | None) -> Tensor | None:
        """Return what each head adds to the score of each query and key, [..., H, n, K]; None without a bias.

        The arguments are those of `bias_terms`.
        """
        terms = self.bias_terms(query, key, *positions)
        return sum(terms[1:], terms[0]) if terms else None

    def bias_terms(
        self,
        query: Tensor,
        key: Tensor,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        key_blocks: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the terms of the bias, each [..., H, n, K].

        Args:
            query: [..., H, n, head_dim].
            key: [..., H, K, head_dim].
            queries: positions of the queries, [n].
            keys: positions of the keys, [K].
            key_blocks: the keys again in C blocks of n positions, [..., C, H, n, head_dim]; None for one block. With
                blocks, the products of the keys take memory for 2 · n · K numbers instead of (n + K) · K.
        """
        terms = []
        if self.table is not None or self.slopes:
            distances = self._distances(query.shape[-2], key.shape[-2], queries, keys)
            terms.append(self._numbers_by_distance(distances))
        first_query, first_key = (
            torch.zeros(1, dtype=torch.int64) if each is None else each[:1] for each in (queries, keys)
        )
        scale = math.sqrt(query.shape[-1])
        if self.distance_keys is not None:
            first = first_key - first_query
            width = self.distance_keys.shape[-1]
            multiplied = query if width == query.shape[-1] else query[..., -width:]
            products = multiply_by_distance(multiplied.unsqueeze(-4) / scale, self.distance_keys, key.shape[-2], first)
            terms.append(products.squeeze(-4))
        if self.distance_queries is not None:
            if key_blocks is None:
                key_blocks = key.unsqueeze(-4)
            else:
                first_key = torch.arange(key_blocks.shape[-4]) * key_blocks.shape[-2]
            blocks = multiply_by_distance(
                key_blocks / scale, self.distance_queries, query.shape[-2], first_query - first_key
            )
            # From [..., C, H, n, n'] to [..., H, n', C · n].
            by_query = blocks.permute(*range(blocks.dim() - 4), -3, -1, -4, -2)
            terms.append(by_query.flatten(-2)[..., : key.shape[-2]])
        return terms

    def place(self, positions: Tensor) -> Tensor:
        """Return the places of positions, whose differences are the distances of `table` and `slopes`."""
        if not self.places:
            return positions
        # Cells of padding have positions that no row has.
        places = torch.tensor(self.places, dtype=positions.dtype)
        return places.index_select(0, positions.clamp(max=len(self.places) - 1))

    def _distances(self, n: int, k: int, queries: Tensor | None, keys: Tensor | None) -> Tensor:
        """Return the distances from n queries to k keys, given their positions, [n, k]."""
        query_positions = torch.arange(n) if queries is None else queries
        key_positions = torch.arange(k) if keys is None else keys
        return self.place(key_positions) - self.place(query_positions)[:, None]

    def _numbers_by_distance(self, distances: Tensor) -> Tensor:
        """Return the numbers of each head for distances [n, K] from queries to keys, [H, n, K].

        The numbers of slopes are float32, because float16 cannot hold all distances.
        """
        if self.table is None:
            return torch.tensor(self.slopes)[:, None, None] * -distances.abs()
        # On CUDA, N is rounded up, perhaps beyond M; no token attends to these keys.
        columns = (distances + self.table.shape[1] // 2).clamp(0, self.table.shape[1] - 1)
        return self.table.index_select(1, columns.flatten()).view(-1, *columns.shape)


def cap_scores(scores: Tensor, cap: float) -> Tensor:
    """Return cap · tanh(scores / cap) (https://arxiv.org/abs/2408.00118, section 2)."""
    return cap * torch.tanh(scores / cap)


def _masked(dtype: torch.dtype) -> float:
    """Return the number to add to a masked score. The kernel multiplies it by log₂e in float32: it must stay finite."""
    return torch.finfo(dtype).min / (2 if dtype == torch.float32 else 1)


def multiply_by_distance(rows: Tensor, vectors: Tensor, columns: int, first: Tensor) -> Tensor:
    """Return the product of each row with the vector of its distance to each column, [..., C, H, m, columns].

    Args:
        rows: queries or keys of C blocks, [..., C, H, m, head_dim].
        vectors: the vectors of the distances −(M − 1) to M − 1 from row to column, [H, 2M − 1, head_dim].
        columns: number of columns.
        first: distance from the first row of each block to the first column, [C].
    """
    count, width = rows.shape[-2], rows.shape[-2] + columns
    # The distances from the last row to the first column, up to those beyond the last column.
    distances = (first[:, None] + torch.arange(1 - count, 1 + columns)).flatten()
    # Rows and columns of padding may be further apart than M − 1.
    places = (distances + vectors.shape[1] // 2).clamp(0, vectors.shape[1] - 1)
    by_block = vectors.index_select(1, places).view(vectors.shape[0], -1, width, vectors.shape[2]).transpose(0, 1)
    products = rows @ by_block.transpose(-2, -1)
    # Row i needs the products i places further left than row 0. Rows that are shorter by one product shift each row by
    # one place more than the row above it.
    shifted = products.flatten(-2)[..., count - 1 : count - 1 + count * (width - 1)]
    return shifted.reshape(*products.shape[:-1], width - 1)[..., :columns]
