"""The norms of an encoder: LayerNorm or RMSNorm."""

import torch
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig


def make_norm(config: EncoderConfig, width: int) -> nn.Module:
    """Return a norm of rows [R, width]."""
    return RmsNorm(width, config.norm_eps) if config.rms_norm else nn.LayerNorm(width, config.norm_eps)


class RmsNorm(nn.Module):
    """Rows divided by their root mean square, x / √(mean(x²) + ε) · weight (https://arxiv.org/abs/1910.07467).

    ONNX Runtime fuses these operators to SimplifiedLayerNormalization. It does not fuse those of `nn.RMSNorm`, which
    take 3.4 times as long on a CPU.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row of [R, width]."""
        # The squares of float16 values may exceed its range.
        exact = x.float()
        # The tracer drops the addition of a number below 1e-8, but not that of an array.
        eps = exact.new_full((1,), self.eps)
        normalized = exact / torch.sqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
        return normalized.to(x.dtype) * self.weight
