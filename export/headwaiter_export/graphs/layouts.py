"""The layouts of graphs: how a graph arranges the sequences of a batch in rows, and how it writes attention over them.

The layouts of the packed graphs for CPUs and for CUDA are in files of their own. `plans.py` lists the layout of each
graph of a bundle. Shapes are those of `encoder/layout.py`.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention import attention, head_indices, split_heads
from headwaiter_export.encoder.layout import AttentionLayout, SingleSequence
from headwaiter_export.encoder.score_terms import ScoreTerms

# Names of a graph's inputs, each with the names of its axes.
Axes = Mapping[str, tuple[str, ...]]
# Rewrites to apply to a traced graph, in order.
Fusions = tuple[Callable[[ir.Model], None], ...]


class GraphLayout(AttentionLayout):
    """A layout in which an encoder can be written as a graph.

    Attributes:
        TOKEN_AXES: names of the axes of the tokens or features.
        INPUT_AXES: names of the other inputs, each with the names of its axes.
        FUSIONS: rewrites that make the layout's graphs faster on its provider.
    """

    TOKEN_AXES: ClassVar[tuple[str, ...]]
    INPUT_AXES: ClassVar[Axes]
    FUSIONS: ClassVar[Fusions] = ()

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = inputs

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Turn the token ids, token types or features that a graph takes into rows [R] or [R, feature_width]."""
        return tokens

    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        """Return the names of a graph's outputs."""
        pooled = [] if config.pooling is Pooling.NONE else ["pooled"]
        return [*pooled, "hidden", *([config.head.output] if config.head else [])]

    def outputs(self, pooled: Tensor | None, hidden: Tensor, logits: Tensor | None = None) -> list[Tensor]:
        """Turn the encoder's results into the graph's outputs, in the order of `output_names`."""
        return [output for output in (pooled, self.from_rows(hidden), logits) if output is not None]


class AttentionWeightsLayout(SingleSequence, GraphLayout):
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


class Portable(GraphLayout):
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


class Packed(GraphLayout):
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
