"""The modules after pooling in PyTorch, in float32 in every graph: they transform one vector of each sequence.

Without pooling, they transform each hidden row.

Their tensors have the names that `sentence-transformers` gives them: `linear.weight`, `linear.bias`, `norm.weight` and
`norm.bias`. Shapes: B sequences; d_in and d_out are the widths of a module's input and output.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.config.after_pooling import DenseActivation, ModuleKind, PooledModule
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS

# The part of an encoder's tensor names that comes before the index of the module.
_PREFIX = "after_pooling."


class Dense(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, config: PooledModule, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, config.width, config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform vectors [B, d_in] to [B, d_out]."""
        return self.activation(self.linear(vectors))


class VectorNorm(nn.Module):
    """A LayerNorm of vectors."""

    def __init__(self, config: PooledModule, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, config.eps)

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform vectors [B, d_in]."""
        normalized: Tensor = self.norm(vectors)
        return normalized


class UnitLength(nn.Module):
    """Scales vectors to unit length; vectors of zeros stay zeros."""

    def __init__(self, config: PooledModule, width: int) -> None:
        super().__init__()

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform vectors [B, d_in]."""
        return F.normalize(vectors, dim=-1)


def build_modules(config: EncoderConfig) -> nn.Sequential:
    """Return the modules after pooling of an encoder, in order."""
    modules = nn.Sequential()
    width = config.width
    for module in config.after_pooling:
        modules.append(_MODULES[module.kind](module, width))
        width = module.width or width
    return modules


def merge_dense(
    config: EncoderConfig, weights: Mapping[str, Tensor]
) -> tuple[tuple[PooledModule, ...], dict[str, Tensor]]:
    """Merge two Dense modules without an activation between them into one, where that saves weights.

    W_2 (W_1 x + b_1) + b_2 = (W_2 W_1) x + (W_2 b_1 + b_2). The products are computed in float64.

    Args:
        config: the configuration of the encoder.
        weights: all weights of the encoder.

    Returns:
        The modules after pooling, and all weights of the encoder with these modules.
    """
    modules = list(config.after_pooling)
    tensors = [
        {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        for prefix in (f"{_PREFIX}{index}." for index in range(len(modules)))
    ]
    index = 0
    while index + 1 < len(modules):
        if _is_mergeable(modules[index], modules[index + 1], tensors[index]):
            activation, bias = modules[index + 1].activation, modules[index].bias or modules[index + 1].bias
            tensors[index : index + 2] = [_merged(*tensors[index : index + 2])]
            width = modules[index + 1].width
            modules[index : index + 2] = [
                PooledModule(kind=ModuleKind.DENSE, width=width, bias=bias, activation=activation)
            ]
        else:
            index += 1
    merged = {name: tensor for name, tensor in weights.items() if not name.startswith(_PREFIX)}
    for index, named in enumerate(tensors):
        merged.update({f"{_PREFIX}{index}.{name}": tensor for name, tensor in named.items()})
    return tuple(modules), merged


def _is_mergeable(first: PooledModule, second: PooledModule, tensors: Mapping[str, Tensor]) -> bool:
    if not first.kind is second.kind is ModuleKind.DENSE or first.activation is not DenseActivation.IDENTITY:
        return False
    width = tensors["linear.weight"].shape[1]
    return width * second.width <= first.width * (width + second.width)


def _merged(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    outer = second["linear.weight"].double()
    merged = {"linear.weight": outer @ first["linear.weight"].double()}
    biases = [outer @ first["linear.bias"].double()] if "linear.bias" in first else []
    biases += [second["linear.bias"].double()] if "linear.bias" in second else []
    if biases:
        merged["linear.bias"] = torch.stack(biases).sum(0)
    return {name: tensor.float() for name, tensor in merged.items()}


_MODULES: Mapping[ModuleKind, Callable[[PooledModule, int], nn.Module]] = {
    ModuleKind.DENSE: Dense,
    ModuleKind.LAYER_NORM: VectorNorm,
    ModuleKind.NORMALIZE: UnitLength,
}
