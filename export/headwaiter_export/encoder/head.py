"""Heads in PyTorch: from the vectors of sequences or tokens to logits."""

from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.norms import make_norm


class Head(nn.Module):
    """One or two linear layers."""

    def __init__(self, head: HeadConfig, config: EncoderConfig) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[head.activation] if head.activation else None
        width = config.width * len(head.poolings)
        if self._activation:
            self.dense = nn.Linear(width, width)
        self.norm: nn.Module = make_norm(config, width) if head.norm else nn.Identity()
        self.output = nn.Linear(width, len(head.labels), head.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return float32 logits [n, labels] of vectors [n, d]."""
        if self._activation:
            vectors = self._activation(self.dense(vectors))
        logits: Tensor = self.output(self.norm(vectors)).float()
        return logits
