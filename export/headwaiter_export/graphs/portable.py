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
        _, context = attention(q, k, v, terms.mask(self.key_mask), bias, terms.cap)
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
