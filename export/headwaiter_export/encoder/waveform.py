"""From the samples of a sound to rows: convolutions over samples, then a convolution over rows for their positions.

Source: https://arxiv.org/abs/2006.11477, section 2, and the implementation of wav2vec 2.0 in `transformers`. Shapes: R
rows, d = d_model.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.waveform import WaveformConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention_layout import AttentionLayout

# The epsilon of the norms between convolutions.
_EPS = 1e-5
# Neighbours of a row that are gathered at once.
_NEIGHBOURS_AT_ONCE = 16


class Waveform(nn.Module):
    """Convolutions of the samples of each feature row, a linear layer to d_model, and positions."""

    def __init__(self, waveform: WaveformConfig, config: EncoderConfig) -> None:
        super().__init__()
        inputs = (1, *waveform.widths)
        self.convolutions = nn.ModuleList(
            SampleConvolution(waveform, number, inputs[number]) for number in range(len(waveform.widths))
        )
        width = waveform.widths[-1]
        self.norm = nn.LayerNorm(width, config.norm_eps) if waveform.final_norm else nn.Identity()
        self.projection = nn.Linear(width, config.d_model)
        self.positions = PositionConvolution(waveform, config.d_model)

    def forward(self, samples: Tensor, layout: AttentionLayout) -> Tensor:
        """Return rows [R, d] for feature rows [R, window] of samples."""
        x = samples[:, :, None]
        for convolution in self.convolutions:
            x = convolution(x, layout)
        rows: Tensor = self.positions(self.projection(self.norm(x[:, 0])), layout)
        return rows


class SampleConvolution(nn.Module):
    """A convolution over the samples of each feature row alone, with its norm and its activation.

    One linear layer takes the neighbouring inputs of an output beside each other.
    """

    def __init__(self, waveform: WaveformConfig, number: int, inputs: int) -> None:
        super().__init__()
        self.kernel, self.stride = waveform.kernels[number], waveform.strides[number]
        width = waveform.widths[number]
        self.linear = nn.Linear(self.kernel * inputs, width, waveform.bias)
        self.channel_norm = ChannelNorm(waveform) if waveform.norms_channels and number == 0 else None
        self.norm = nn.Identity() if waveform.norms_channels else nn.LayerNorm(width, _EPS)
        self.activation = ACTIVATIONS[waveform.activation]

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform the inputs [R, n, channels] of each feature row to [R, outputs, width]."""
        last = x.shape[1] - self.kernel
        neighbours = torch.cat([x[:, first : first + last + 1 : self.stride] for first in range(self.kernel)], 2)
        y = self.linear(neighbours)
        if self.channel_norm is not None:
            y = self.channel_norm(y, layout)
        return self.activation(self.norm(y))


class ChannelNorm(nn.Module):
    """(x − mean) / √(variance + ε) · weight + bias, with the mean and the variance of a channel in the whole sequence.

    Feature rows overlap, so the last outputs of a feature row are also the first of the next. Each output counts once.
    """

    def __init__(self, waveform: WaveformConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(waveform.widths[0]))
        self.bias = nn.Parameter(torch.zeros(waveform.widths[0]))
        self.own, self.all = waveform.first_outputs_per_hop, waveform.first_outputs

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Normalise outputs [R, n, channels] of the first convolution."""
        # Squares of the values may exceed the range of float16.
        exact, numbers = x.float(), layout.sequence_numbers
        is_last = layout.positions == layout.lengths.index_select(0, numbers) - 1
        counts = self.own * (layout.lengths - 1) + self.all

        def means(values: Tensor) -> Tensor:
            """Return the mean of each channel in the sequence of each feature row, [R, 1, channels]."""
            own, others = values[:, : self.own].sum(1), values[:, self.own :].sum(1)
            # In float32, the sum of a long sound with a mean far from 0 would be inexact.
            sums = layout.pad((own + torch.where(is_last[:, None], others, 0.0)).double())
            totals = torch.where(layout.token_mask[..., None], sums, 0.0).sum(1)
            return (totals / counts[:, None]).float().index_select(0, numbers)[:, None]

        centred = exact - means(exact)
        normalized = centred / torch.sqrt(means(centred * centred) + _EPS)
        return (normalized * self.weight + self.bias).to(x.dtype)


class PositionConvolution(nn.Module):
    """x_i + activation(W [x_(i − r) … x_i … x_(i + r)] + b) for each row x_i.

    r is half the kernel size, rounded down. Rows beyond the ends of a sequence are 0. W does not mix groups of
    channels. With an even kernel size, x_(i + r) is left out.
    """

    def __init__(self, waveform: WaveformConfig, d_model: int) -> None:
        super().__init__()
        self.kernel, self.groups = waveform.position_kernel, waveform.position_groups
        width = d_model // self.groups
        self.weight = nn.Parameter(torch.randn(self.groups, self.kernel * width, width) / (self.kernel * width) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.activation = ACTIVATIONS[waveform.activation]

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Add positions to rows [R, d]."""
        width = x.shape[1] // self.groups
        # Gathering all neighbours at once would take `kernel` times the memory of the rows.
        products = []
        for first in range(0, self.kernel, _NEIGHBOURS_AT_ONCE):
            numbers = range(self.kernel)[first : first + _NEIGHBOURS_AT_ONCE]
            neighbours = layout.neighbours(x, [number - self.kernel // 2 for number in numbers])
            inputs = neighbours.view(-1, len(numbers), self.groups, width).permute(2, 0, 1, 3).flatten(2)
            products.append(inputs @ self.weight[:, first * width : (first + len(numbers)) * width])
        y = sum(products[1:], products[0])
        return x + self.activation(y.transpose(0, 1).flatten(1) + self.bias)
