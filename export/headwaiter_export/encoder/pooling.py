"""Poolings in PyTorch: from the hidden rows of each sequence to one vector.

Shapes: R rows of B sequences, N tokens of the longest sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import AttentionLayout


def pool(
    x: Tensor,
    layout: AttentionLayout,
    poolings: Sequence[Pooling],
    prefix_rows: int = 0,
    ends: Tensor | None = None,
) -> Tensor:
    """Pool rows [R, width] to float32 [B, k · width], the vectors of k poolings of `ROW_POOLINGS` one after another.

    `ends` [B] is the number of tokens of each sequence up to its last one; None for all tokens.
    """
    cells = layout.pad(x)
    vectors = [_pool_cells(cells, layout, each, prefix_rows, ends) for each in poolings]
    return torch.cat(vectors, 1) if len(vectors) > 1 else vectors[0]


def _pool_cells(
    cells: Tensor, layout: AttentionLayout, pooling: Pooling, prefix_rows: int, ends: Tensor | None
) -> Tensor:
    """Pool cells [B, N, width] to float32 [B, width]."""
    lengths = layout.lengths
    if pooling is Pooling.CLS:
        return cells[:, 0].float()
    if pooling is Pooling.LAST:
        last = ((lengths if ends is None else ends).long() - 1)[:, None, None].expand(-1, 1, cells.shape[2])
        return cells.gather(1, last)[:, 0].float()
    if pooling is Pooling.PREFIX_MEAN:
        return cells[:, :prefix_rows].float().mean(1)
    # In this order: with the mask first, ONNX Runtime computes the size of the mask on the GPU for some decoders.
    cells, is_token = cells.float(), layout.token_mask[..., None]
    if pooling is Pooling.MAX:
        return torch.where(is_token, cells, -torch.inf).amax(1)
    if pooling is Pooling.WEIGHTED_MEAN:
        cells = cells * (torch.arange(cells.shape[1]) + 1).float()[:, None]
    if pooling is Pooling.PATCH_MEAN:
        cells, is_token, lengths = cells[:, prefix_rows:], is_token[:, prefix_rows:], lengths - prefix_rows
    # The sum does not multiply by the mask: a cell of padding may hold infinity, and 0 × infinity is NaN.
    total = torch.where(is_token, cells, 0.0).sum(1)
    if pooling in (Pooling.MEAN, Pooling.PATCH_MEAN):
        return total / lengths[:, None]
    counts = lengths[:, None].float()
    if pooling is Pooling.MEAN_SQRT_LEN:
        return total / counts.sqrt()
    assert pooling is Pooling.WEIGHTED_MEAN
    return total / (counts * (counts + 1) / 2)
