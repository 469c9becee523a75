"""Activations in PyTorch, by the names in EncoderConfig, HeadConfig and PooledModule."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headwaiter_export.config.choices import Activation


def _quick_gelu(x: Tensor) -> Tensor:
    """Approximate gelu (https://arxiv.org/abs/1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "identity": lambda x: x,
    "leaky_relu": F.leaky_relu,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# The smallest value of each activation of feed-forward blocks, rounded down; int8 graphs need it.
LOWEST = {
    Activation.GELU: -0.17,
    Activation.GELU_TANH: -0.1701,
    Activation.QUICK_GELU: -0.1637,
    Activation.RELU: 0.0,
    Activation.SILU: -0.2785,
}
