"""Attention layouts, as the modules of an encoder see them: which rows form a sequence, and how a sequence attends.

Linear layers, norms and activations treat each row alone, so `encoder.py` defines them once for all graphs. Positions,
attention and pooling need to know which rows form a sequence; they ask the layout. `SingleSequence` is the layout of
the reference in PyTorch. Those of the graphs are in `graphs/`.

Shapes: R rows, T tokens of a batch, B sequences, N tokens of the longest sequence, H heads, d = d_model. R is T without
padding, and B·N with padding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.encoder.score_terms import ScoreTerms, cap_scores

# Queries of one block of a long sequence in PyTorch.
_BLOCK_QUERIES = 1024


class AttentionLayout(ABC):
    """An arrangement of sequences in rows, and attention within each sequence.

    Attributes:
        attended_lengths: number of tokens of each sequence that are attended to, from its first one, [B]; None for all.
        source: for the rows of a target, the layout of the encoder's rows of the same sequences.
    """

    attended_lengths: Tensor | None = None
    source: Self | None = None

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Position of each row in its own sequence, int64 [R]."""

    @property
    @abstractmethod
    def token_mask(self) -> Tensor:
        """True where a grid cell holds a token, bool [B, N]."""

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each sequence, [B]."""
        return self.token_mask.sum(1)

    def attending_to(self, lengths: Tensor) -> Self:
        """Return the same layout with these `attended_lengths`."""
        layout = copy(self)
        layout.attended_lengths = lengths
        return layout

    @property
    def key_lengths(self) -> Tensor:
        """Number of tokens of each sequence that are attended to, [B]."""
        return self.lengths if self.attended_lengths is None else self.attended_lengths

    @property
    def key_mask(self) -> Tensor:
        """True where a grid cell holds a token that is attended to, bool [B, N]."""
        if self.attended_lengths is None:
            return self.token_mask
        return torch.arange(self.token_mask.shape[1]) < self.attended_lengths[:, None]

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        """Compute the context [R, H·value_dim] of query and key [R, H·head_dim] and value [R, H·value_dim].

        A row attends only to rows of its own sequence; `terms` are added to the scores.
        """

    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        """Compute the context of a decoder's queries for the encoder's keys and values.

        A row attends only to rows of its own sequence. Both stacks have the same rows, except in a layout of a decoder.
        """
        return self.attend(query, key, value, heads, terms)

    @property
    def target(self) -> Self:
        """The layout of the rows of the targets, given that of the rows of the sources."""
        raise NotImplementedError

    def join(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the rows of whole sequences, given those of their sources and of their targets."""
        return torch.cat((source, target))

    @abstractmethod
    def pad(self, rows: Tensor) -> Tensor:
        """Arrange rows [R, d] in grid cells [B, N, d]."""

    @property
    def sequence_numbers(self) -> Tensor:
        """Number of each row's sequence in the batch, int64 [R]."""
        return (self.positions == 0).long().cumsum(0) - 1

    def neighbours(self, rows: Tensor, distances: Sequence[int]) -> Tensor:
        """Return for each row the rows of its sequence at some distances, [R, distances, d].

        Where the sequence has no such row, the numbers are 0.
        """
        away = torch.tensor(distances)
        positions = self.positions[:, None] + away
        lengths = self.lengths.long().index_select(0, self.sequence_numbers)
        exists = (positions >= 0) & (positions < lengths[:, None])
        places = torch.where(exists, torch.arange(1, rows.shape[0] + 1)[:, None] + away, 0)
        # `F.embedding` is traced to Gather.
        return F.embedding(places, F.pad(rows, (0, 0, 1, 0)))

    def from_rows(self, rows: Tensor) -> Tensor:
        """Turn rows [R, d] into an output of a graph."""
        return rows

    def rotate(self, x: Tensor, heads: int, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotate the pairs (2i, 2i + 1) of each head of queries or keys [R, H·head_dim] by the angles of its position.

        The tables [max_tokens, head_dim / 2] have the cosine and the sine of the angle of each position and pair.
        """
        cos, sin = (table.index_select(0, self.positions)[:, None] for table in (cosines, sines))
        pairs = x.view(x.shape[0], heads, -1, 2)
        even, odd = pairs[..., 0], pairs[..., 1]
        return interleave(even * cos - odd * sin, even * sin + odd * cos).flatten(1)


def interleave(even: Tensor, odd: Tensor) -> Tensor:
    """Merge two tensors [..., n] to [..., 2n], with `even` at even indices and `odd` at odd indices."""
    return torch.stack((even, odd), -1).flatten(-2)


class SingleSequence(AttentionLayout):
    """One sequence, run in plain PyTorch: the reference for all graphs.

    Without a cap of scores, it uses PyTorch's own attention, so that the comparison with a graph also checks the
    formula in `attention`.
    """

    def __init__(self, tokens: int, target_tokens: int = 0) -> None:
        self.tokens = tokens
        self._target_tokens = target_tokens

    @property
    @override
    def target(self) -> Self:
        layout = copy(self)
        layout.tokens, layout.source = self._target_tokens, self
        return layout

    @property
    @override
    def positions(self) -> Tensor:
        return torch.arange(self.tokens)

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.ones(1, self.tokens, dtype=torch.bool)

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        q, k, v = (self._split_heads(rows, heads) for rows in (query, key, value))
        # Masks and biases are arrays of all pairs, so long sequences are computed in blocks of queries.
        whole = (terms.are_zero and not terms.cap) or terms.depend_on_content
        rows = self.tokens if whole else _BLOCK_QUERIES
        blocks = [
            self._attend_block(block, positions, k, v, terms)
            for block, positions in zip(
                torch.split(q, rows, 1), torch.split(torch.arange(self.tokens), rows), strict=True
            )
        ]
        return torch.cat(blocks, 1).transpose(0, 1).flatten(1)

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        if self.source is None:
            return self.attend(query, key, value, heads, terms)
        q, k, v = (self._split_heads(rows, heads) for rows in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)

    def _attend_block(self, q: Tensor, positions: Tensor, k: Tensor, v: Tensor, terms: ScoreTerms) -> Tensor:
        """Compute the contexts [H, n, value_dim] of the queries [H, n, head_dim] at these positions [n]."""
        pairs, bias = self.allowed_pairs(terms, positions), terms.bias(q, k, positions)
        if terms.cap:
            # PyTorch's own attention has no cap.
            scores = cap_scores(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), terms.cap)
            scores = scores if bias is None else scores + bias
            scores = scores if pairs is None else scores.masked_fill(~pairs, -torch.inf)
            return scores.softmax(-1) @ v
        if bias is not None and pairs is not None:
            bias = bias.masked_fill(~pairs, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, pairs if bias is None else bias)

    def allowed_pairs(self, terms: ScoreTerms, queries: Tensor | None = None) -> Tensor | None:
        """Return whether each query at these positions attends to each key, bool [n or 1, N]; None if all do."""
        pairs = terms.allowed_pairs(self.tokens, queries)
        if self.attended_lengths is None:
            return pairs
        return self.key_mask if pairs is None else pairs & self.key_mask

    def _split_heads(self, rows: Tensor, heads: int) -> Tensor:
        """Arrange rows [N, H·head_dim] as [H, N, head_dim]."""
        return rows.view(rows.shape[0], heads, -1).transpose(0, 1)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows[None]
