"""Sparse vectors in PyTorch: from hidden rows to one number for each token of the vocabulary.

Shapes: R rows of B sequences; d = width of a hidden row, V = size of the vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.pooling import pool
from headwaiter_server.runtime.memory import LOGITS_AT_ONCE


class VocabularyHead(nn.Module):
    """The head of a masked language model, and the largest logit of each token: see `VocabularyHeadConfig`."""

    def __init__(self, head: VocabularyHeadConfig, config: EncoderConfig) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[head.activation]
        self._log_twice = head.log_twice
        self.dense = nn.Linear(config.width, config.width)
        self.norm = make_norm(config, config.width)
        self.output = nn.Linear(config.width, config.vocabulary_size)

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the vectors of hidden rows [R, d], float32 [B, V]."""
        rows = self.norm(self._activation(self.dense(x)))
        # The logits of all rows for the whole vocabulary would be the largest array of a model.
        parts = torch.split(self.output.weight, LOGITS_AT_ONCE)
        largest = torch.cat([pool(F.linear(rows, part), layout, (Pooling.MAX,)) for part in parts], 1)
        # The bias and the logarithm change no order, so they follow the maximum.
        vectors = (largest + self.output.bias.float()).relu().log1p()
        return vectors.log1p() if self._log_twice else vectors
