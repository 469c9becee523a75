"""The portable layout: padded sequences, and only standard ONNX operators."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.encoder.attention import attention
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.graph_layout import Axes, GraphLayout


class Portable(GraphLayout):
    """Padded sequences with a mask, in standard ONNX operators. Every grid cell is a row: R = B·N."""

    TOKEN_AXES = ("batch", "sequence")
    INPUT_AXES: ClassVar[Axes] = {"attention_mask": ("batch", "sequence")}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs)
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
        return self._attend(query, key, value, heads, terms, self)

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        return self._attend(query, key, value, heads, terms, self.source or self)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms, keys: "Portable"
    ) -> Tensor:
        q, k, v = self.split_heads(query, heads), keys.split_heads(key, heads), keys.split_heads(value, heads)
        bias = terms.bias(q, k)
        _, context = attention(q, k, v, terms.mask(keys.key_mask), bias, terms.cap)
        return context.transpose(1, 2).reshape(query.shape[0], value.shape[1])

    def split_heads(self, rows: Tensor, heads: int) -> Tensor:
        """Arrange rows [R, H·n] as [B, H, N, n]."""
        return rows.view(*self._token_mask.shape, heads, rows.shape[1] // heads).transpose(1, 2)

    @override
    def join(self, source: Tensor, target: Tensor) -> Tensor:
        return torch.cat((self.pad(source), self.target.pad(target)), 1).flatten(0, 1)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows.view(*self._token_mask.shape, rows.shape[1])

    @override
    def to_rows(self, tokens: Tensor) -> Tensor:
        return tokens.flatten(0, 1)

    @override
    def from_rows(self, rows: Tensor) -> Tensor:
        return rows.view(self._token_mask.shape[0], -1, rows.shape[1])
