"""The configuration of convolutions that turn the samples of a sound into rows."""

import math
from dataclasses import dataclass

from headwaiter_export.config.choices import Activation
from headwaiter_export.config.field_checks import MAX_SIZE, ConfigError


@dataclass(frozen=True)
class WaveformConfig:
    """The convolutions of wav2vec 2.0 (https://arxiv.org/abs/2006.11477, section 2), which are not padded.

    A feature row holds the samples that one row of the last convolution depends on. It begins `hop` samples after the
    feature row before, so feature rows overlap.

    Attributes:
        widths: number of output channels of each convolution.
        kernels: number of neighbouring inputs of each convolution.
        strides: distance between the inputs of neighbouring outputs of each convolution.
        bias: whether convolutions have biases.
        norms_channels: whether the outputs of the first convolution are normalised over the whole sequence, each
            channel alone; otherwise a LayerNorm over all channels follows each convolution.
        activation: activation after each convolution, and after that of the positions.
        final_norm: whether a LayerNorm comes before the linear layer that maps the last convolution to d_model.
        position_kernel: kernel size of a convolution over rows; its result, after `activation`, is added to a row as
            its position.
        position_groups: number of groups of channels that this convolution does not mix.
        gates_distances: whether each head adds to the score of a query and a key a number that depends on the distance
            between them, times a gate that is computed from the query's row, as in WavLM
            (https://arxiv.org/abs/2110.13900, section III-B).
    """

    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    bias: bool
    norms_channels: bool
    activation: Activation
    final_norm: bool
    position_kernel: int
    position_groups: int
    gates_distances: bool = False

    def __post_init__(self) -> None:
        if max(self.hop, self.window) > MAX_SIZE:
            raise ConfigError(
                f"the convolutions read {self.window} samples for a row, and the next row begins {self.hop} samples "
                f"later: at most {MAX_SIZE} are supported"
            )
        if self.norms_channels and self.first_outputs < self.first_outputs_per_hop:
            raise ConfigError(
                f"the first convolution has {self.first_outputs} outputs for a row, and the next row begins "
                f"{self.first_outputs_per_hop} outputs later, but the norm of channels needs all outputs: enlarge the "
                "later kernels, or reduce the later strides"
            )

    @property
    def hop(self) -> int:
        """Number of samples from the start of a feature row to the start of the next."""
        return math.prod(self.strides)

    @property
    def window(self) -> int:
        """Number of samples of a feature row."""
        inputs = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            inputs = (inputs - 1) * stride + kernel
        return inputs

    @property
    def first_outputs(self) -> int:
        """Number of outputs of the first convolution for one feature row."""
        return self.outputs[0]

    @property
    def first_outputs_per_hop(self) -> int:
        """Number of outputs of the first convolution in one hop: the next feature row does not repeat them."""
        return self.hop // self.strides[0]

    @property
    def outputs(self) -> list[int]:
        """Number of outputs of each convolution for one feature row."""
        counts = [self.window]
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            counts.append((counts[-1] - kernel) // stride + 1)
        return counts[1:]

    def products_per_row(self, d_model: int) -> int:
        """Return the number of products of the convolutions and of the linear layer after them for one row."""
        sizes = zip(self.outputs, self.kernels, (1, *self.widths[:-1]), self.widths, strict=True)
        convolutions = sum(outputs * kernel * inputs * width for outputs, kernel, inputs, width in sizes)
        return convolutions + self.widths[-1] * d_model + self.position_kernel * d_model**2 // self.position_groups

    @property
    def live_values(self) -> int:
        """Most numbers that a graph holds at once for one feature row: four times the outputs of a convolution.

        Measured in ONNX Runtime: the outputs, the norm, the activation, and the inputs of the next convolution.
        """
        return 4 * max(outputs * width for outputs, width in zip(self.outputs, self.widths, strict=True))
