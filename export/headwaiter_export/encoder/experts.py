"""Mixtures of experts: attention has several value and output projections, or layers several feed-forward blocks.

A linear layer, the router, gives each expert a score, and each token uses the experts with the highest scores. Their
gates are the sigmoids of their scores in attention, and probabilities in feed-forward blocks; neither are normalised
again, and all other gates are 0. The graphs compute all experts, and multiply the results by the gates: every operator
treats each row alone, and no shape depends on the choice.

Shapes: R rows, H heads, E experts of a head, d = d_model.
Sources: SwitchHead, https://arxiv.org/abs/2312.07987, and the authors' implementation; Nomic Embed v2,
https://arxiv.org/abs/2502.07972, and its code.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS


class Router(nn.Linear):
    """Gives each row a gate for every expert: that of its score for the `active` highest scores of a head, otherwise 0.

    Of experts with equal scores, the one with the lower number is chosen first. PyTorch's TopK has no such rule, so
    the scores of a head are compared pair by pair.
    """

    def __init__(self, width: int, heads: int, experts: int, active: int) -> None:
        super().__init__(width, heads * experts, bias=False)
        self.heads = heads
        self.active = active

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the gates of rows [R, d], [R, H, E, 1]."""
        scores = self.scores(x)[..., None]
        others = scores.transpose(2, 3)
        experts = torch.arange(scores.shape[2])
        precedes = (others > scores) | ((others == scores) & (experts < experts[:, None]))
        is_active = precedes.float().sum(3, keepdim=True) < self.active
        return torch.where(is_active, self.gates(scores), 0.0)

    def gates(self, scores: Tensor) -> Tensor:
        """Return the gates of scores [R, H, E, 1], as if all experts were active."""
        return scores.sigmoid()

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


class ProbabilityRouter(Router):
    """A router whose gates are the probabilities of all experts, softmax(scores)."""

    @override
    def gates(self, scores: Tensor) -> Tensor:
        # Not `softmax`: a server counts the operators Softmax of a graph as attention layers.
        exponentials = (scores - scores.amax(2, keepdim=True)).exp()
        return exponentials / exponentials.sum(2, keepdim=True)


class ExpertValues(nn.Module):
    """Values: Σ_e gate_he(x) · W_he x for head h, with the gates of the row that is attended to."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.experts, config.value_dim)
        self.experts = nn.Linear(config.d_model, config.heads * config.experts * config.value_dim, bias=False)
        self.router = Router(config.d_model, config.heads, config.experts, config.active_experts)

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
        self.router = Router(config.d_model, config.heads, config.experts, config.active_experts)

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        """Transform contexts [R, H·value_dim] to rows [R, d], given the rows [R, d] of which the queries were made."""
        contexts = self.router(x) * context.view(x.shape[0], *self.context_shape)
        projected: Tensor = self.experts(contexts.flatten(1))
        return projected


class ExpertFeedForward(nn.Module):
    """Feed-forward blocks: Σ_e gate_e(x) · W_down,e activation(W_up,e x) + b, with one bias for all experts."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.feed_forward_experts is not None
        experts = config.feed_forward_experts.experts
        self.shape = (experts, config.d_ff)
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.width, experts * config.d_ff, bias=False)
        self.down = nn.Linear(experts * config.d_ff, config.width)
        self.router = ProbabilityRouter(config.width, 1, experts, config.feed_forward_experts.active)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each row of [R, width]."""
        inner = self.activation(self.up(x)).view(x.shape[0], *self.shape)
        # The router gives gates of one head, [R, 1, E, 1].
        transformed: Tensor = self.down((inner * self.router(x)[:, 0]).flatten(1))
        return transformed
