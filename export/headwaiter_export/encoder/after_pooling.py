"""The modules after the layers in PyTorch, in float32 in every graph: they transform pooled vectors or hidden rows.

Their tensors have the names that `sentence-transformers` gives them: `linear.weight`, `linear.bias`, `norm.weight` and
`norm.bias`. Shapes: B sequences; d_in and d_out are the widths of a module's input and output.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.config.after_pooling import DenseActivation, ModuleKind, PooledModule
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS

# The fields of EncoderConfig that list modules; the names of their tensors begin with the field and the module's index.
MODULE_FIELDS = ("after_pooling", "row_modules")
# The modules of an encoder that stay in float32 in graphs of lower precisions.
FLOAT32_MODULES = ("attention_pooling", *MODULE_FIELDS)


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


class FirstValues(nn.Module):
    """Keeps the first values of vectors."""

    def __init__(self, config: PooledModule, width: int) -> None:
        super().__init__()
        self._width = config.width

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform vectors [B, d_in] to [B, d_out]."""
        return vectors[:, : self._width]


def build_modules(modules: Iterable[PooledModule], width: int) -> nn.Sequential:
    """Return modules of vectors of this width, in order."""
    built = nn.Sequential()
    for module in modules:
        built.append(_MODULES[module.kind](module, width))
        width = module.width or width
    return built


def merge_dense(config: EncoderConfig, weights: Mapping[str, Tensor]) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Merge two Dense modules without an activation between them into one, where that saves weights.

    W_2 (W_1 x + b_1) + b_2 = (W_2 W_1) x + (W_2 b_1 + b_2). The products are computed in float64.

    Args:
        config: the configuration of the encoder.
        weights: all weights of the encoder.

    Returns:
        The configuration and all weights of the encoder with the merged modules.
    """
    after_pooling, merged = _merge_listed("after_pooling", config.after_pooling, weights)
    row_modules, merged = _merge_listed("row_modules", config.row_modules, merged)
    return replace(config, after_pooling=after_pooling, row_modules=row_modules), merged


def _merge_listed(
    name: str, listed: Iterable[PooledModule], weights: Mapping[str, Tensor]
) -> tuple[tuple[PooledModule, ...], dict[str, Tensor]]:
    """Merge the Dense modules that one field of EncoderConfig lists."""
    modules = list(listed)
    tensors = [
        {each.removeprefix(prefix): tensor for each, tensor in weights.items() if each.startswith(prefix)}
        for prefix in (f"{name}.{index}." for index in range(len(modules)))
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
    merged = {each: tensor for each, tensor in weights.items() if not each.startswith(f"{name}.")}
    for index, named in enumerate(tensors):
        merged.update({f"{name}.{index}.{each}": tensor for each, tensor in named.items()})
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
    ModuleKind.TRUNCATE: FirstValues,
}
