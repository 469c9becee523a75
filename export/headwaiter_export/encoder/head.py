"""Heads in PyTorch: from hidden rows to logits.

Shapes: R rows of B sequences; d = width of a hidden row.
"""

from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm


class Head(nn.Module):
    """One or two linear layers on one row for each sequence, or on every row."""

    def __init__(self, head: HeadConfig, config: EncoderConfig) -> None:
        super().__init__()
        self._per_token = head.per_token
        self._activation = ACTIVATIONS[head.activation] if head.activation else None
        self.norm: nn.Module = nn.Identity()
        if self._activation:
            self.dense = nn.Linear(config.width, config.width)
            self.norm = make_norm(config, config.width) if head.norm else self.norm
        self.output = nn.Linear(config.width, len(head.labels), head.bias)

    def forward(self, x: Tensor, layout: AttentionLayout, pooled: Tensor | None = None) -> Tensor:
        """Return the logits of hidden rows [R, d]: float32 [B, labels], or one row for each token.

        The logits of sequences are those of `pooled` [B, d]; without it, those of the first row of each sequence.
        """
        if self._per_token:
            rows = x
        elif pooled is None:
            rows = layout.pad(x)[:, 0]
        else:
            rows = pooled.to(x.dtype)
        if self._activation:
            rows = self.norm(self._activation(self.dense(rows)))
        logits: Tensor = self.output(rows).float()
        return layout.from_rows(logits) if self._per_token else logits
