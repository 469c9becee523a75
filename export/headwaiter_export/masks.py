"""What is added to the scores of attention: masks, and biases by distance."""

import torch
from torch import Tensor

from headwaiter_export.choices import Mask

# The score of a masked key: the lowest float32. A real score can be lower than ONNX Runtime's default of −10,000.
MASKED_SCORE = torch.finfo(torch.float32).min


def allowed_pairs(mask: Mask, tokens: int, positions: Tensor | None = None) -> Tensor | None:
    """Return whether each query attends to each key, bool [..., n, N]; None if all attend to all.

    `positions` are those of the queries in their sequences, [..., n]; None for all positions 0 to N − 1.
    """
    if mask is Mask.NONE:
        return None
    query, key = (torch.arange(tokens) if positions is None else positions)[..., None], torch.arange(tokens)
    return key <= query if mask is Mask.CAUSAL else key != query


def score_mask(token_mask: Tensor, mask: Mask, positions: Tensor | None = None) -> Tensor:
    """Return the mask to add to the scores, float32 [B, 1, 1 or n, N]; float16 cannot hold MASKED_SCORE.

    `positions` are those of the queries in their sequences, [B, n]; None for all positions 0 to N − 1.
    """
    keys, tokens = token_mask[:, None, None, :], token_mask.shape[1]
    pairs = allowed_pairs(mask, tokens, None if positions is None else positions[:, None])
    return torch.where(keys if pairs is None else keys & pairs, 0.0, MASKED_SCORE)


def distance_bias(table: Tensor | None, tokens: int, positions: Tensor | None = None) -> Tensor | None:
    """Return the number that each head adds to the score of each query and key, [H, n, N]; None without a table.

    Args:
        table: the numbers of each head for the distances −(M − 1) to M − 1 from query to key, [H, 2M − 1], or None.
        tokens: N.
        positions: those of the queries, [n]; None for all positions 0 to N − 1.
    """
    if table is None:
        return None
    query = torch.arange(tokens) if positions is None else positions
    # On CUDA, N is rounded up, perhaps beyond M; no token attends to these keys.
    columns = (torch.arange(tokens) - query[:, None] + table.shape[1] // 2).clamp(0, table.shape[1] - 1)
    return table.index_select(1, columns.flatten()).view(-1, *columns.shape)
