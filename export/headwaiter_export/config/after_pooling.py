"""The configuration of modules after the layers, which transform a pooled vector or each hidden row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.field_checks import ConfigError, check_choice, check_eps, check_size


class ModuleKind(StrEnum):
    """What a module computes of a vector x.

    DENSE: activation(W x + b). LAYER_NORM: (x − mean) / √(variance + ε) · γ + β. NORMALIZE: x / max(‖x‖₂, 1e-12).
    TRUNCATE: the first values of x.
    """

    DENSE = "dense"
    LAYER_NORM = "layer_norm"
    NORMALIZE = "normalize"
    TRUNCATE = "truncate"


class DenseActivation(StrEnum):
    """Activation after the linear layer of a DENSE module; each has the default parameters of `torch.nn`."""

    IDENTITY = "identity"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    ELU = "elu"
    GELU = "gelu"
    SILU = "silu"


@dataclass(frozen=True, kw_only=True)
class PooledModule:
    """One module after pooling, or one that transforms each hidden row.

    Attributes:
        kind: what the module computes.
        width: number of values of the output of a DENSE or TRUNCATE module.
        bias: whether a DENSE module has a bias.
        activation: activation of a DENSE module.
        eps: ε of a LAYER_NORM module.

    Raises:
        ConfigError: a field is wrong, or belongs to another kind of module.
    """

    kind: ModuleKind
    width: int = 0
    bias: bool = True
    activation: DenseActivation = DenseActivation.IDENTITY
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_choice(self, "kind", ModuleKind)
        check_choice(self, "activation", DenseActivation)
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default and field.name not in _FIELDS[self.kind]:
                raise ConfigError(f"{field.name} is {value!r} in a module of kind {self.kind}: leave it out")
        if self.kind in (ModuleKind.DENSE, ModuleKind.TRUNCATE):
            check_size("width", self.width)
        if not isinstance(self.bias, bool):
            raise ConfigError(f"bias is {self.bias!r}: it must be true or false")
        check_eps("eps", self.eps)

    @classmethod
    def from_value(cls, value: Any) -> "PooledModule":
        """Create a module from an object of fields; return a module as it is."""
        if isinstance(value, cls):
            return value
        known = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping) or "kind" not in value or value.keys() - set(known):
            raise ConfigError(f"{value!r:.99} is not a module: write an object with kind, and fields of {known[1:]}")
        return cls(**value)


_FIELDS = {
    ModuleKind.DENSE: ("width", "bias", "activation"),
    ModuleKind.LAYER_NORM: ("eps",),
    ModuleKind.NORMALIZE: (),
    ModuleKind.TRUNCATE: ("width",),
}


def output_width(modules: Iterable[PooledModule], width: int) -> int:
    """Return the width of the vectors after some modules, for vectors of this width before them."""
    for module in modules:
        width = module.width or width
    return width


def resolve_modules(config: Any) -> None:
    """Turn the objects of `after_pooling` and `row_modules` into modules, and check that they fit the pooling."""
    for name in ("after_pooling", "row_modules"):
        modules = getattr(config, name)
        if not isinstance(modules, list | tuple):
            raise ConfigError(f"{name} is {modules!r:.99}: it must be a list of modules")
        object.__setattr__(config, name, tuple(map(PooledModule.from_value, modules)))
    for name, width in (("after_pooling", config.pooling_width), ("row_modules", config.width)):
        for module in getattr(config, name):
            if module.kind is ModuleKind.TRUNCATE and module.width > width:
                raise ConfigError(f"{name} keeps {module.width} values of {width}: reduce the width of truncate")
            width = module.width or width
    if config.after_pooling and config.pooling is Pooling.NONE:
        raise ConfigError(
            "after_pooling has modules with pooling 'none': choose a pooling, or move them to row_modules"
        )
    if config.after_pooling and config.after_pooling[-1].kind is ModuleKind.NORMALIZE:
        raise ConfigError("after_pooling ends with a module normalize: remove it, and set normalize to true")
