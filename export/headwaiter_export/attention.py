"""Multi-head self-attention, over rows in any layout."""

import math

import torch
from torch import Tensor, nn

from headwaiter_export.attention_layout import Lowering
from headwaiter_export.config import EncoderConfig, Positions
from headwaiter_export.positions import NoPositions, RotaryPositions


class SelfAttention(nn.Module):
    """softmax(q kᵀ / √head_dim) v in every head (https://arxiv.org/abs/1706.03762, section 3.2).

    The heads' outputs are concatenated, and projected to d_model where the configuration says so.
    The projections see rows one by one; which rows are one sequence is the lowering's affair.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.mask = config.mask
        self.positions = RotaryPositions(config) if config.positions is Positions.ROTARY else NoPositions()
        self.temperature = LearnedTemperature(config) if config.learned_temperature else nn.Identity()
        inner_width, context_width = config.heads * config.head_dim, config.heads * config.value_dim
        self.query = nn.Linear(config.d_model, inner_width, config.query_bias)
        self.key = nn.Linear(config.d_model, inner_width, config.key_bias)
        self.value = nn.Linear(config.d_model, context_width, config.value_bias)
        self.output: nn.Module = nn.Identity()
        if config.output_projection:
            self.output = nn.Linear(context_width, config.d_model, config.output_bias)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Attend within each sequence: [R, d_model] to [R, width]."""
        query = self.positions(self.temperature(self.query(x)), lowering)
        key = self.positions(self.key(x), lowering)
        context = lowering.attend(query, key, self.value(x), self.heads, self.mask)
        projected: Tensor = self.output(context)
        return projected


class LearnedTemperature(nn.Module):
    """softmax(q kᵀ / T) with a T of every head's own, as in https://arxiv.org/abs/2112.13492.

    Attention divides by √head_dim whatever the temperature, so queries are multiplied by √head_dim / T before.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.temperature = nn.Parameter(torch.full((config.heads,), math.sqrt(config.head_dim)))

    def forward(self, query: Tensor) -> Tensor:
        """Scale queries [R, H·head_dim]."""
        return query * self.factors

    @property
    def factors(self) -> Tensor:
        """What each column of the queries is multiplied by, [H·head_dim]."""
        return (math.sqrt(self.head_dim) / self.temperature).repeat_interleave(self.head_dim)
