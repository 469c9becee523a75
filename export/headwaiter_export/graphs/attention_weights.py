"""The graph that returns the attention weights of one sequence."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention import attention
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.graph_layout import Axes, GraphLayout


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
        pairs = self.allowed_pairs(terms)
        mask = None if pairs is None else torch.where(pairs, 0.0, -torch.inf)
        weights, context = attention(q, k, v, mask, terms.bias(q, k), terms.cap)
        self._weights_and_contexts += [weights, context]
        return context.transpose(0, 1).flatten(1)

    @override
    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        return [f"{output}_{layer}" for layer in range(config.attention_layers) for output in ("weights", "context")]

    @override
    def outputs(self, pooled: Tensor | None, hidden: Tensor, logits: Tensor | None = None) -> list[Tensor]:
        return self._weights_and_contexts
