"""Disentangled attention: products of queries and keys with learned vectors of the distances between them.

Source: https://arxiv.org/abs/2006.03654, section 3.1.
"""

import torch
from torch import Tensor


def multiply_by_distance(rows: Tensor, vectors: Tensor, columns: int, first: Tensor) -> Tensor:
    """Return the product of each row with the vector of its distance to each column, [..., C, H, m, columns].

    Args:
        rows: queries or keys of C blocks, [..., C, H, m, head_dim].
        vectors: the vectors of the distances −(M − 1) to M − 1 from row to column, [H, 2M − 1, head_dim].
        columns: number of columns.
        first: distance from the first row of each block to the first column, [C].
    """
    count, width = rows.shape[-2], rows.shape[-2] + columns
    # The distances from the last row to the first column, up to those beyond the last column.
    distances = (first[:, None] - (count - 1) + torch.arange(width)).flatten()
    # Rows and columns of padding may be further apart than M − 1.
    places = (distances + vectors.shape[1] // 2).clamp(0, vectors.shape[1] - 1)
    by_block = vectors.index_select(1, places).view(vectors.shape[0], -1, width, vectors.shape[2]).transpose(0, 1)
    products = rows @ by_block.transpose(-2, -1)
    # Row i needs the products i places further left than row 0. Rows that are shorter by one product shift each row by
    # one place more than the row above it.
    shifted = products.flatten(-2)[..., count - 1 : count - 1 + count * (width - 1)]
    return shifted.reshape(*products.shape[:-1], width - 1)[..., :columns]
