"""Heads in PyTorch: from hidden rows to vectors, and from vectors to logits.

Shapes: R rows of B sequences; d = width of a hidden row.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadConfig, HeadPooling
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.pooling import pool


class Head(nn.Module):
    """One or two linear layers."""

    def __init__(self, head: HeadConfig, config: EncoderConfig) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[head.activation] if head.activation else None
        width = config.width * (2 if head.pooling is HeadPooling.CLS_AND_PATCH_MEAN else 1)
        if self._activation:
            self.dense = nn.Linear(width, width)
        self.norm: nn.Module = make_norm(config, width) if head.norm else nn.Identity()
        self.output = nn.Linear(width, len(head.labels), head.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return float32 logits [B, labels] of vectors [B, d], those of sequences or of tokens."""
        if self._activation:
            vectors = self._activation(self.dense(vectors))
        logits: Tensor = self.output(self.norm(vectors)).float()
        return logits


def pool_for_head(x: Tensor, layout: AttentionLayout, pooling: HeadPooling, prefix_rows: int) -> Tensor:
    """Pool rows [R, d] to the float32 vectors [B, d or 2 d] that a head scores."""
    cells = layout.pad(x).float()
    if pooling is HeadPooling.CLS:
        return cells[:, 0]
    if pooling in (HeadPooling.MEAN, HeadPooling.LAST):
        return pool(x, layout, Pooling(pooling))
    if pooling is HeadPooling.PREFIX_MEAN:
        return cells[:, :prefix_rows].mean(1)
    is_patch = layout.token_mask[:, prefix_rows:, None]
    # Cells of padding may hold infinity.
    mean = torch.where(is_patch, cells[:, prefix_rows:], 0.0).sum(1) / (layout.lengths - prefix_rows)[:, None]
    return mean if pooling is HeadPooling.PATCH_MEAN else torch.cat((cells[:, 0], mean), 1)
