"""The buckets of distances between rows in T5, MPNet and WavLM (https://arxiv.org/abs/1910.10683, section 2.1)."""

import math

import torch
from torch import Tensor

from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.encoder import EncoderConfig


def fold_buckets(
    tensors: dict[str, Tensor],
    module: str,
    config: EncoderConfig,
    buckets: int = 32,
    farthest: int = 128,
    *,
    causal: bool = False,
    rounds_sums: bool = False,
) -> None:
    """Replace the numbers of buckets, `module`.weight, by the number of each distance from query to key.

    All distances of at least `farthest` share one bucket in each direction. With `causal`, all buckets are for keys
    before the query. With `rounds_sums`, a bucket is rounded after the number of the first buckets is added, as in
    WavLM: in float32, the result may differ by 1.
    """
    numbers = take_tensor(tensors, f"{module}.weight", (buckets, config.heads))
    distances = torch.arange(1 - config.max_tokens, config.max_tokens)
    tensors[f"{module}.table"] = numbers[
        _bucket(distances, buckets, farthest, causal=causal, rounds_sums=rounds_sums)
    ].T.contiguous()


def _bucket(distances: Tensor, buckets: int, farthest: int, *, causal: bool, rounds_sums: bool) -> Tensor:
    """Return the bucket of each distance from query to key, int64."""
    one_way = buckets if causal else buckets // 2
    exact = one_way // 2
    sizes = (-distances).clamp(min=0) if causal else distances.abs()
    # In float32 and in this order, as in transformers: the bounds of the ranges depend on rounding.
    ratios = torch.log(sizes.clamp(min=1).float() / exact) / math.log(farthest / exact)
    ranges = ratios * (one_way - exact)
    ranges = ((exact + ranges).long() if rounds_sums else exact + ranges.long()).clamp(max=one_way - 1)
    one_way_buckets = torch.where(sizes < exact, sizes, ranges)
    return one_way_buckets if causal else one_way_buckets + one_way * (distances > 0)
