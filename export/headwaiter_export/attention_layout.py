"""Attention layouts: how a graph arranges its rows, and how rows attend within their own sequence.

Linear layers, norms and activations work on rows [R, d] in every layout. Only attention and pooling read more than one
row, so a layout defines them. Shapes: R rows, B sequences, N tokens of the longest sequence, H heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.attention import attention
from headwaiter_export.config import EncoderConfig, Mask, Pooling

# Graph inputs beside the tokens, with the names of their axes.
Axes = Mapping[str, tuple[str, ...]]

# Rewrites of a traced graph, in order.
Fusions = tuple[Callable[[ir.Model], None], ...]

# The score of a masked key. ONNX Runtime's default, −10,000, is not below every possible score.
MASKED_SCORE = torch.finfo(torch.float32).min


class AttentionLayout(ABC):
    """One arrangement of sequences in rows, and attention over it.

    Attributes:
        FUSIONS: rewrites that make the layout's graphs faster where they run.
    """

    FUSIONS: ClassVar[Fusions] = ()

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Position of each row inside its own sequence, int64 [R]."""

    @property
    @abstractmethod
    def lengths(self) -> Tensor:
        """Tokens of each sequence, [B]."""

    @property
    @abstractmethod
    def token_mask(self) -> Tensor:
        """True where a padded cell holds a token, bool [B, N]."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        """Attend within each sequence: query and key [R, H·head_dim] and value [R, d] to context [R, d]."""

    @abstractmethod
    def pad(self, rows: Tensor) -> Tensor:
        """Arrange rows [R, d] in padded cells, [B, N, d]."""

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Turn a graph's token ids or features into rows, [R] or [R, d_in]."""
        return tokens

    def from_rows(self, rows: Tensor) -> Tensor:
        """Turn hidden rows [R, d] into a graph's output."""
        return rows

    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        """Return the names of a graph's outputs."""
        return ["hidden"] if config.pooling is Pooling.NONE else ["pooled", "hidden"]

    def outputs(self, pooled: Tensor | None, hidden: Tensor) -> list[Tensor]:
        """Turn the encoder's results into the graph's outputs, in the order of `output_names`."""
        hidden = self.from_rows(hidden)
        return [hidden] if pooled is None else [pooled, hidden]

    def add_and_normalize(self, x: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        """Return norm(x + residual), [R, d]; the norm is a LayerNorm."""
        normalized: Tensor = norm(x + residual)
        return normalized


class SingleSequence(AttentionLayout):
    """One sequence in plain PyTorch, without padding. All other layouts are compared with this one."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    @property
    @override
    def positions(self) -> Tensor:
        return torch.arange(self._tokens)

    @property
    @override
    def lengths(self) -> Tensor:
        return self.token_mask.sum(1)

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.ones(1, self._tokens, dtype=torch.bool)

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        return self._attention(query, key, value, heads, mask)[1].transpose(0, 1).flatten(1)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> tuple[Tensor, Tensor]:
        """Return the attention weights [H, n, n] and the context [H, n, value_dim]."""
        q, k, v = (rows.view(self._tokens, heads, -1).transpose(0, 1) for rows in (query, key, value))
        pairs = allowed_pairs(mask, self._tokens)
        return attention(q, k, v, None if pairs is None else torch.where(pairs, 0.0, -torch.inf))

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows[None]


class AttentionWeightsLayout(SingleSequence):
    """One sequence; the graph's outputs are the attention weights and contexts of every layer.

    Layer i has `weights_i` [H, n, n], one row for each query, and `context_i` [H, n, value_dim], each head's output
    before the output projection. The weight of a masked key is exactly 0.
    """

    TOKEN_AXES = ("tokens",)
    INPUT_AXES: ClassVar[Axes] = {}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        (tokens,) = inputs.values()
        super().__init__(tokens.shape[0])
        self._weights_and_contexts: list[Tensor] = []

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        weights, context = self._attention(query, key, value, heads, mask)
        self._weights_and_contexts += [weights, context]
        return context.transpose(0, 1).flatten(1)

    @override
    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        return [f"{output}_{layer}" for layer in range(config.layers) for output in ("weights", "context")]

    @override
    def outputs(self, pooled: Tensor | None, hidden: Tensor) -> list[Tensor]:
        return self._weights_and_contexts


class Portable(AttentionLayout):
    """Padded sequences and a mask, in standard ONNX operators. R = B·N: every padded cell is a row."""

    TOKEN_AXES = ("batch", "sequence")
    INPUT_AXES: ClassVar[Axes] = {"attention_mask": ("batch", "sequence")}

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._token_mask = inputs["attention_mask"] > 0

    @property
    @override
    def positions(self) -> Tensor:
        batch, longest = self._token_mask.shape
        return torch.arange(longest).expand(batch, longest).flatten()

    @property
    @override
    def lengths(self) -> Tensor:
        return self._token_mask.sum(1)

    @property
    @override
    def token_mask(self) -> Tensor:
        return self._token_mask

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        batch, longest = self._token_mask.shape
        q, k, v = (
            rows.view(batch, longest, heads, rows.shape[1] // heads).transpose(1, 2) for rows in (query, key, value)
        )
        _, context = attention(q, k, v, _score_mask(self._token_mask, mask))
        return context.transpose(1, 2).reshape(value.shape)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        batch, longest = self._token_mask.shape
        return rows.view(batch, longest, rows.shape[1])

    @override
    def to_rows(self, tokens: Tensor) -> Tensor:
        return tokens.flatten(0, 1)

    @override
    def from_rows(self, rows: Tensor) -> Tensor:
        return self.pad(rows)


class Packed(AttentionLayout):
    """Sequences concatenated without padding, with the index inputs of the packed batch. R is the number of tokens.

    Attention gathers rows into padded cells and scatters the context back to rows. A padding cell repeats its own
    sequence's last row, so attention never reads a row of another sequence.
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
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        # Head h of row r is row r·H + h of the same memory viewed as [T·H, head_dim]: no transpose of heads is needed.
        indices = self._inputs["gather"][:, None] * heads + torch.arange(heads)[:, None]
        q, k, v = (
            F.embedding(indices, rows.view(rows.shape[0] * heads, rows.shape[1] // heads))
            for rows in (query, key, value)
        )
        _, context = attention(q, k, v, _score_mask(self.token_mask, mask))
        return context.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self._inputs["scatter"])

    @override
    def pad(self, rows: Tensor) -> Tensor:
        # An embedding becomes Gather. `rows[gather]` would become GatherND, which is slower.
        return F.embedding(self._inputs["gather"], rows)


class PackedCpu(Packed):
    """Packed sequences in standard operators.

    A batch of 512 tokens takes 2 to 3 % less time than with ONNX Runtime's MultiHeadAttention.
    """


def allowed_pairs(mask: Mask, tokens: int) -> Tensor | None:
    """Return True where a query (row) may attend to a key (column), bool [N, N]; None without a mask."""
    if mask is Mask.NONE:
        return None
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)
    return key <= query if mask is Mask.CAUSAL else key != query


def _score_mask(token_mask: Tensor, mask: Mask) -> Tensor:
    """Return the mask that attention adds to the scores, float32 [B, 1, 1 or N, N].

    The result is float32 in every precision, as float16 cannot hold the score of a masked key.
    """
    keys, pairs = token_mask[:, None, None, :], allowed_pairs(mask, token_mask.shape[1])
    return torch.where(keys if pairs is None else keys & pairs, 0.0, MASKED_SCORE)
