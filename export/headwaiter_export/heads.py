"""Heads in PyTorch: from hidden rows to logits.

Shapes: R rows of B sequences; d = width of a hidden row.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.attention_layout import AttentionLayout
from headwaiter_export.head_config import HeadActivation, HeadConfig


class Head(nn.Module):
    """One or two linear layers on the first row of each sequence, or on every row."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self._per_token = config.per_token
        self._activation = _ACTIVATIONS[config.activation] if config.activation else None
        if self._activation:
            self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, len(config.labels))

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the logits of hidden rows [R, d]: float32 [B, labels], or one row for each token."""
        rows = x if self._per_token else layout.pad(x)[:, 0]
        if self._activation:
            rows = self._activation(self.dense(rows))
        logits: Tensor = self.output(rows).float()
        return layout.from_rows(logits) if self._per_token else logits


_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    HeadActivation.TANH: torch.tanh,
    HeadActivation.GELU: F.gelu,
    HeadActivation.GELU_TANH: partial(F.gelu, approximate="tanh"),
    HeadActivation.RELU: F.relu,
    HeadActivation.SILU: F.silu,
}
