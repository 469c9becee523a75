"""How much arithmetic a model is, and how much of it a device does in a second."""

from collections.abc import Iterable

import torch

from bench.gpu.setting import Setting
from bench.gpu.timing import median_seconds
from headwaiter_export.config import EncoderConfig


def encoder_flops(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Return the floating-point operations in the matrix products of sequences of these lengths.

    A linear layer takes 2 operations for each weight and token; a head's attention 2·n·(head_dim + value_dim) for each
    token of n. Embeddings, norms, activations and softmax are no matrix products, and pooling is not counted.
    """
    inner = config.heads * config.value_dim
    linear = config.d_model * (2 * config.heads * config.head_dim + inner)
    linear += inner * config.d_model if config.output_projection else 0
    linear += 2 * config.width * config.d_ff
    attention = config.heads * (config.head_dim + config.value_dim)
    return sum(2 * n * config.layers * (linear + n * attention) for n in lengths)


def matrix_rate(setting: Setting, dtype: torch.dtype) -> float:
    """Return the operations a second of a large product of square matrices in PyTorch: what a device does at most."""
    side = setting.effort.matrix
    left, right = (torch.randn(side, side, device=setting.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(left, right, out=out)

    return _PRODUCTS * 2 * side**3 / median_seconds(multiply, setting, 5)


# Enough for one run to outlast what it takes to start it.
_PRODUCTS = 10
