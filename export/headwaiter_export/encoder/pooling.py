"""Poolings in PyTorch: from the hidden rows of each sequence to one vector.

Shapes: R rows of B sequences.
"""

import torch
from torch import Tensor

from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import AttentionLayout


def pool(x: Tensor, layout: AttentionLayout, pooling: Pooling) -> Tensor:
    """Pool rows [R, width] to float32 [B, width]; the pooling is one of `PLAIN_POOLINGS`."""
    cells = layout.pad(x).float()
    if pooling is Pooling.CLS:
        return cells[:, 0]
    if pooling is Pooling.LAST:
        last = (layout.lengths.long() - 1)[:, None, None].expand(-1, 1, cells.shape[2])
        return cells.gather(1, last)[:, 0]
    is_token = layout.token_mask[..., None]
    if pooling is Pooling.MAX:
        return torch.where(is_token, cells, -torch.inf).amax(1)
    if pooling is Pooling.WEIGHTED_MEAN:
        cells = cells * (torch.arange(cells.shape[1]) + 1).float()[:, None]
    # The sum does not multiply by the mask: a cell of padding may hold infinity, and 0 × infinity is NaN.
    total = torch.where(is_token, cells, 0.0).sum(1)
    if pooling is Pooling.MEAN:
        return total / layout.lengths[:, None]
    lengths = layout.lengths[:, None].float()
    return total / (lengths.sqrt() if pooling is Pooling.MEAN_SQRT_LEN else lengths * (lengths + 1) / 2)
