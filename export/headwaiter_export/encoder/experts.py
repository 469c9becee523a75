"""Mixtures of experts in attention: each head has several value and output projections, and each token chooses some.

A linear layer, the router, gives each expert a score. The gates of the experts with the highest scores are the sigmoids
of their scores, and are not normalised; all other gates are 0. The graphs compute all experts, and multiply the results
by the gates: every operator treats each row alone, and no shape depends on the choice.

Shapes: R rows, H heads, E experts of a head, d = d_model.
Source: SwitchHead, https://arxiv.org/abs/2312.07987, and the authors' implementation.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.encoder import EncoderConfig


class Router(nn.Linear):
    """Gives each row a gate for every expert: sigmoid(score) for the `active` highest scores of a head, otherwise 0.

    Of experts with equal scores, the one with the lower number is chosen first. PyTorch's TopK has no such rule, so
    the scores of a head are compared pair by pair.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.d_model, config.heads * config.experts, bias=False)
        self.heads = config.heads
        self.active = config.active_experts

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the gates of rows [R, d], [R, H, E, 1]."""
        scores = self.scores(x)[..., None]
        others = scores.transpose(2, 3)
        experts = torch.arange(scores.shape[2])
        precedes = (others > scores) | ((others == scores) & (experts < experts[:, None]))
        is_active = precedes.float().sum(3, keepdim=True) < self.active
        return torch.where(is_active, scores.sigmoid(), 0.0)

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of rows [R, d], [R, H, E]."""
        return super().forward(x).view(x.shape[0], self.heads, self.out_features // self.heads)

    def smallest_gap(self, x: Tensor) -> float:
        """Return the smallest gap between the scores of an active expert and of another, in units of the largest score.

        Infinite if all experts are active.
        """
        scores = self.scores(x)
        if self.active == scores.shape[2]:
            return torch.inf
        ranked = scores.sort(dim=2, descending=True).values
        gaps = ranked[..., self.active - 1] - ranked[..., self.active]
        return (gaps.min() / scores.abs().max()).item()


class ExpertValues(nn.Module):
    """Values: Σ_e gate_he(x) · W_he x for head h, with the gates of the row that is attended to."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.experts, config.value_dim)
        self.experts = nn.Linear(config.d_model, config.heads * config.experts * config.value_dim, bias=False)
        self.router = Router(config)

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows [R, d] to values [R, H·value_dim]."""
        values: Tensor = self.router(x) * self.experts(x).view(x.shape[0], *self.shape)
        return values.sum(2).flatten(1)


class ExpertOutput(nn.Module):
    """Output: Σ_h Σ_e gate_he(x) · W_he context_h, with the gates of the row that attends."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.context_shape = (config.heads, 1, config.value_dim)
        self.experts = nn.Linear(config.heads * config.experts * config.value_dim, config.d_model, bias=False)
        self.router = Router(config)

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        """Transform contexts [R, H·value_dim] to rows [R, d], given the rows [R, d] of which the queries were made."""
        contexts = self.router(x) * context.view(x.shape[0], *self.context_shape)
        projected: Tensor = self.experts(contexts.flatten(1))
        return projected
