"""Pooling by attention: a learned query attends to all rows of a sequence, and a feed-forward block follows.

Shapes: R rows of B sequences, N tokens of the longest sequence, H heads, d = width of a hidden row.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.layers import FeedForward
from headwaiter_export.encoder.norms import make_norm


class AttentionPooling(nn.Module):
    """Attention of one learned query, then x + feed_forward(norm(x)), with the heads and the widths of the layers.

    The query q is the same for all sequences, so the score q · W_k x of a row x is a linear layer from x to a number
    for each head. Source: https://arxiv.org/abs/2106.04560, section 3.1 (MAP).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.scores = nn.Linear(config.width, config.heads, bias=False)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)
        self.norm: nn.Module = make_norm(config, config.width) if config.d_ff else nn.Identity()
        self.feed_forward = FeedForward(config) if config.d_ff else None

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Pool rows [R, d] to float32 [B, d]."""
        x = x.float()
        is_token = layout.token_mask[..., None]
        scores = torch.where(is_token, layout.pad(self.scores(x)), -torch.inf)
        # A cell of padding may hold infinity, and 0 × infinity is NaN.
        values = torch.where(is_token, layout.pad(self.value(x)), 0.0)
        weights = scores.transpose(1, 2).softmax(2)[:, :, None]
        contexts = weights @ values.view(*values.shape[:2], weights.shape[1], -1).transpose(1, 2)
        pooled: Tensor = self.output(contexts.flatten(1))
        if self.feed_forward is not None:
            pooled = pooled + self.feed_forward(self.norm(pooled))
        return pooled
