"""Attention layouts: how a graph arranges the sequences of a batch in rows, and how it writes attention over them.

Linear layers, norms and activations treat each row alone, so `encoder.py` defines them once for all graphs. Positions,
attention and pooling need to know which rows form a sequence; they ask the layout. `graph_plans.py` lists the layout of
each graph of a bundle.

Shapes: R rows, T tokens of a batch, B sequences, N tokens of the longest sequence, H heads, d = d_model. R is T without
padding, and B·N with padding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.attention import attention, head_indices, split_heads
from headwaiter_export.choices import Pooling
from headwaiter_export.config import EncoderConfig
from headwaiter_export.masks import ScoreTerms

# Names of a graph's inputs, without the tokens or features, each with the names of its axes.
Axes = Mapping[str, tuple[str, ...]]
# Rewrites to apply to a traced graph, in order.
Fusions = tuple[Callable[[ir.Model], None], ...]


# Queries of one block of a long sequence in PyTorch.
_BLOCK_QUERIES = 1024


class AttentionLayout(ABC):
    """An arrangement of sequences in rows, and attention within each sequence.

    Attributes:
        FUSIONS: rewrites that make the layout's graphs faster on its provider.
    """

    FUSIONS: ClassVar[Fusions] = ()

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

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        """Compute the context [R, H·value_dim] of query and key [R, H·head_dim] and value [R, H·value_dim].

        A row attends only to rows of its own sequence; `terms` are added to the scores.
        """

    @abstractmethod
    def pad(self, rows: Tensor) -> Tensor:
        """Arrange rows [R, d] in grid cells [B, N, d]."""

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Turn the token ids, token types or features that a graph takes into rows [R] or [R, feature_width]."""
        return tokens

    def from_rows(self, rows: Tensor) -> Tensor:
        """Turn rows [R, d] into an output of a graph."""
        return rows

    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        """Return the names of a graph's outputs."""
        pooled = [] if config.pooling is Pooling.NONE else ["pooled"]
        return [*pooled, "hidden", *([config.head.output] if config.head else [])]

    def outputs(self, pooled: Tensor | None, hidden: Tensor, logits: Tensor | None = None) -> list[Tensor]:
        """Turn the encoder's results into the graph's outputs, in the order of `output_names`."""
        return [output for output in (pooled, self.from_rows(hidden), logits) if output is not None]

    def add_and_normalize(self, x: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        """Return norm(x + residual), [R, d]."""
        normalized: Tensor = norm(x + residual)
        return normalized


class SingleSequence(AttentionLayout):
    """One sequence, run in plain PyTorch: the reference for all graphs.

    It uses PyTorch's own attention, so that the comparison with a graph also checks the formula in `attention`.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    @property
    @override
    def positions(self) -> Tensor:
        return torch.arange(self._tokens)

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.ones(1, self._tokens, dtype=torch.bool)

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        q, k, v = (self._split_heads(rows, heads) for rows in (query, key, value))
        # Masks and biases are arrays of all pairs, so long sequences are computed in blocks of queries.
        rows = self._tokens if terms.are_zero or terms.depend_on_content else _BLOCK_QUERIES
        blocks = [
            self._attend_block(block, positions, k, v, terms)
            for block, positions in zip(
                torch.split(q, rows, 1), torch.split(torch.arange(self._tokens), rows), strict=True
            )
        ]
        return torch.cat(blocks, 1).transpose(0, 1).flatten(1)

    def _attend_block(self, q: Tensor, positions: Tensor, k: Tensor, v: Tensor, terms: ScoreTerms) -> Tensor:
        """Compute the contexts [H, n, value_dim] of the queries [H, n, head_dim] at these positions [n]."""
        pairs, bias = terms.allowed_pairs(self._tokens, positions), terms.bias(q, k, positions)
        if bias is not None and pairs is not None:
            bias = bias.masked_fill(~pairs, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, pairs if bias is None else bias)

    def _split_heads(self, rows: Tensor, heads: int) -> Tensor:
        """Arrange rows [N, H·head_dim] as [H, N, head_dim]."""
        return rows.view(self._tokens, heads, -1).transpose(0, 1)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows[None]


class AttentionWeightsLayout(SingleSequence):
    """One sequence, in a graph that returns the attention weights and contexts of every layer.

    Output `weights_i` [H, N, N] of layer i has one row for each query; the weight of a masked key is exactly 0. Output
    `context_i` [H, N, value_dim] is each head's context before the output projection.
    """

    TOKEN_AXES = ("tokens",)
    INPUT_AXES: ClassVar[Axes] = {}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        tokens, *_ = inputs.values()
        super().__init__(tokens.shape[0])
        self._weights_and_contexts: list[Tensor] = []

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        q, k, v = (self._split_heads(rows, heads) for rows in (query, key, value))
        pairs = terms.allowed_pairs(self._tokens)
        bias = terms.bias(q, k)
        weights, context = attention(q, k, v, None if pairs is None else torch.where(pairs, 0.0, -torch.inf), bias)
        self._weights_and_contexts += [weights, context]
        return context.transpose(0, 1).flatten(1)

    @override
    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        return [f"{output}_{layer}" for layer in range(config.layers) for output in ("weights", "context")]

    @override
    def outputs(self, pooled: Tensor | None, hidden: Tensor, logits: Tensor | None = None) -> list[Tensor]:
        return self._weights_and_contexts


class Portable(AttentionLayout):
    """Padded sequences with a mask, in standard ONNX operators. Every grid cell is a row: R = B·N."""

    TOKEN_AXES = ("batch", "sequence")
    INPUT_AXES: ClassVar[Axes] = {"attention_mask": ("batch", "sequence")}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._token_mask = inputs["attention_mask"] > 0

    @property
    @override
    def positions(self) -> Tensor:
        return torch.arange(self._token_mask.shape[1]).expand(self._token_mask.shape).flatten()

    @property
    @override
    def token_mask(self) -> Tensor:
        return self._token_mask

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        batch, longest = self._token_mask.shape
        q, k, v = (
            rows.view(batch, longest, heads, rows.shape[1] // heads).transpose(1, 2) for rows in (query, key, value)
        )
        bias = terms.bias(q, k)
        _, context = attention(q, k, v, terms.mask(self._token_mask), bias)
        return context.transpose(1, 2).reshape(value.shape)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows.view(*self._token_mask.shape, rows.shape[1])

    @override
    def to_rows(self, tokens: Tensor) -> Tensor:
        return tokens.flatten(0, 1)

    @override
    def from_rows(self, rows: Tensor) -> Tensor:
        return self.pad(rows)


class Packed(AttentionLayout):
    """Sequences concatenated without padding: R = T. The server computes the index inputs of each batch.

    Attention gathers the rows into grid cells, and scatters the context back to rows. A cell without a token repeats
    the last row of its own sequence, so attention never reads a row of another sequence.
    """

    TOKEN_AXES = ("tokens",)
    INPUT_AXES: ClassVar[Axes] = {
        "positions": ("tokens",),
        "lengths": ("batch",),
        "gather": ("batch", "sequence"),
        "scatter": ("tokens",),
    }

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = inputs

    @property
    @override
    def positions(self) -> Tensor:
        return self._inputs["positions"]

    @property
    @override
    def lengths(self) -> Tensor:
        return self._inputs["lengths"]

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.arange(self._inputs["gather"].shape[1]) < self.lengths[:, None]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        indices = head_indices(self._inputs["gather"], heads)
        q, k, v = (F.embedding(indices, split_heads(rows, heads)) for rows in (query, key, value))
        bias = terms.bias(q, k)
        _, context = attention(q, k, v, terms.mask(self.token_mask), bias)
        return context.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self._inputs["scatter"])

    @override
    def pad(self, rows: Tensor) -> Tensor:
        # `F.embedding` is traced to Gather. `rows[gather]` would be traced to GatherND, which is slower.
        return F.embedding(self._inputs["gather"], rows)
