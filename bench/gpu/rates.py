"""The arithmetic of a model, and the arithmetic that a device can do per second."""

from collections.abc import Iterable

import torch

from bench.gpu.settings import Settings
from bench.gpu.timing import median_seconds
from headwaiter_export.config import EncoderConfig


def encoder_flops(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Return the floating-point operations of the matrix products for sequences of these lengths.

    A linear layer takes 2 operations for each weight and token. One head's attention takes 2·n·(head_dim + value_dim)
    operations for each of n tokens. Embeddings, norms, activations, softmax and pooling are not counted.
    """
    inner = config.heads * config.value_dim
    linear = config.d_model * (2 * config.heads * config.head_dim + inner)
    linear += inner * config.d_model if config.output_projection else 0
    linear += 2 * config.width * config.d_ff
    attention = config.heads * (config.head_dim + config.value_dim)
    return sum(2 * n * config.layers * (linear + n * attention) for n in lengths)


def matrix_rate(settings: Settings, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product in PyTorch, the most that a device can do."""
    side = settings.effort.matrix
    left, right = (torch.randn(side, side, device=settings.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(left, right, out=out)

    return _PRODUCTS * 2 * side**3 / median_seconds(multiply, settings, 5)


# Enough products to make the start of a run negligible.
_PRODUCTS = 10
