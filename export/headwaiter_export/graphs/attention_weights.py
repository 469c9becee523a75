"""The graph that returns the attention weights of one sequence."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention import attention
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.graph_layout import Axes, GraphLayout
from headwaiter_server.runtime.attention_weights import ATTENTION_OUTPUTS
from headwaiter_server.runtime.packing import TARGET


class AttentionWeightsLayout(SingleSequence, GraphLayout):
    """One sequence, in a graph that returns the attention weights and contexts of every layer.

    Output `weights_i` [H, N, N] of layer i has one row for each query; the weight of a masked key is exactly 0. Output
    `context_i` [H, N, value_dim] is each head's context before the output projection. `queries_i` and `keys_i` [H, N,
    head_dim] and `values_i` [H, N, value_dim] are what both are computed from. With a target, N counts its rows too: a
    row has zeros in the layers of the other stack.
    """

    TOKEN_AXES = ("tokens",)
    INPUT_AXES: ClassVar[Axes] = {}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        targets = [rows.shape[0] for name, rows in inputs.items() if name.startswith(TARGET)]
        tokens, *_ = inputs.values()
        super().__init__(tokens.shape[0], *targets)
        self._takes_target = bool(targets)
        # The target's layout, which is a copy, appends to the same list.
        self._outputs: list[Tensor] = []

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        pairs = self.allowed_pairs(terms)
        mask = None if pairs is None else torch.where(pairs, 0.0, -torch.inf)
        return self._attend(query, key, value, heads, terms, mask, self)

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        if self.source is None:
            return self.attend(query, key, value, heads, terms)
        return self._attend(query, key, value, heads, terms, None, self.source)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        terms: ScoreTerms,
        mask: Tensor | None,
        keys: "AttentionWeightsLayout",
    ) -> Tensor:
        q, k, v = (self._split_heads(rows, heads) for rows in (query, key, value))
        weights, context = attention(q, k, v, mask, terms.bias(q, k), terms.cap)
        outputs = [weights, context, q, k, v]
        if self._takes_target:
            rows, columns = self.rows_around(), keys.rows_around()
            outputs = [
                F.pad(weights, (*columns, *rows)),
                F.pad(context, (0, 0, *rows)),
                F.pad(q, (0, 0, *rows)),
                F.pad(k, (0, 0, *columns)),
                F.pad(v, (0, 0, *columns)),
            ]
        self._outputs += outputs
        return context.transpose(0, 1).flatten(1)

    def rows_around(self) -> tuple[int, int]:
        """Return the number of rows of the whole sequence before and after those of this layout."""
        return (0, self._target_tokens) if self.source is None else (self.source.tokens, 0)

    @override
    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        return [f"{output}_{layer}" for layer in range(config.attention_layers) for output in ATTENTION_OUTPUTS]

    @override
    def outputs(self, pooled: Tensor | None, hidden: Tensor | None, logits: Tensor | None = None) -> list[Tensor]:
        return self._outputs
