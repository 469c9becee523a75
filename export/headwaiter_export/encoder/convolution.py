"""A convolution over the tokens: it reads the input of the first layer, and its result is added to the output.

Source: https://arxiv.org/abs/2006.03654, and the authors' implementation of DeBERTa v2.
"""

from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm


class Convolution(nn.Module):
    """norm(y_i + activation(W [x_(i − r) … x_i … x_(i + r)] + b)) for each row y_i of the first layer's output.

    x is the layer's input, and r is (kernel size − 1) / 2. Rows beyond the ends of a sequence are 0.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.reach = config.convolution_kernel // 2
        self.linear = nn.Linear(config.convolution_kernel * config.d_model, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config, config.d_model)

    def forward(self, x: Tensor, y: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform the rows y [R, d] of the first layer, given its input x [R, d]."""
        neighbours = layout.neighbours(x, range(-self.reach, self.reach + 1)).flatten(1)
        normalized: Tensor = self.norm(self.activation(self.linear(neighbours)) + y)
        return normalized
