"""A convolution of the input of the first layer, whose result is added to the layer's rows.

Source: https://arxiv.org/abs/2006.03654, and the authors' implementation of DeBERTa v2.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm


class Convolution(nn.Module):
    """norm(y_i + activation(W [x_(i − k) … x_i … x_(i + k)] + b)) of each row y_i, where x is the layer's input.

    One linear layer takes the rows of neighbours beside each other. Beyond the ends of a sequence, rows are 0.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.reach = config.convolution // 2
        self.linear = nn.Linear(config.convolution * config.d_model, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config, config.d_model)

    def forward(self, x: Tensor, y: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform the rows y [R, d] of the first layer, given its input x [R, d]."""
        distances = range(-self.reach, self.reach + 1)
        neighbours = torch.cat([layout.neighbours(x, distance) for distance in distances], 1)
        return layout.add_and_normalize(self.activation(self.linear(neighbours)), y, self.norm)
