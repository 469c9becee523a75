"""How positions are told: by vectors added to the embeddings, or by turning queries and keys."""

import torch
from torch import Tensor, nn

from headwaiter_export.attention_layout import Lowering
from headwaiter_export.config import EncoderConfig


class NoPositions(nn.Module):
    """Nothing: what is not told its positions sees a set."""

    def forward(self, x: Tensor, _: Lowering) -> Tensor:
        """Return rows [R, d] as they are."""
        return x


class LearnedPositions(nn.Module):
    """One learned vector for each position."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.max_tokens, config.d_model)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Add the position vectors to [R, d]."""
        positions: Tensor = self.table(lowering.positions)
        return x + positions


class SinusoidalPositions(nn.Module):
    """Position p's vector has sin(p / 10000^(2i/d)) at 2i and cos(p / 10000^(2i/d)) at 2i + 1.

    Source: https://arxiv.org/abs/1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        angles = _angles(config.max_tokens, config.d_model)
        self.register_buffer("table", _interleave(angles.sin(), angles.cos()).float(), persistent=False)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Add the position vectors to [R, d]."""
        return x + self.table.index_select(0, lowering.positions)


class RotaryPositions(nn.Module):
    """In every head, the pair (2i, 2i + 1) at position p is turned by the angle p / 10000^(2i/head_dim).

    A query's product with a key then depends on how far apart they are, and not on where.
    Source: https://arxiv.org/abs/2104.09864, section 3.2.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        angles = _angles(config.max_tokens, config.head_dim)
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Turn queries or keys [R, H·head_dim]."""
        cosines, sines = (table.index_select(0, lowering.positions)[:, None] for table in (self.cosines, self.sines))
        pairs = x.view(x.shape[0], self.heads, -1, 2)
        even, odd = pairs[..., 0], pairs[..., 1]
        return _interleave(even * cosines - odd * sines, even * sines + odd * cosines).flatten(1)


def _angles(tokens: int, width: int) -> Tensor:
    """Return p / 10000^(2i/width) for every position p and pair i, float64 [tokens, width / 2].

    In float32 the angles of late positions would be off by more than the numeric contract allows. The device is named,
    as modules are also built where nothing is computed.
    """
    frequencies = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    return torch.arange(tokens, dtype=torch.float64, device="cpu")[:, None] * frequencies


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """Return [..., 2n] with one half at even places and the other at odd ones."""
    return torch.stack((even, odd), -1).flatten(-2)
