"""Checks of the fields of configurations."""

from dataclasses import fields
from enum import StrEnum
from typing import Any

from headwaiter_export.choices import Mask, Positions

# Greater than any size of a real encoder, and small enough for a product of two sizes to fit in 64 bits.
MAX_SIZE = 2**24


class ConfigError(ValueError):
    """A field of the configuration is missing, unknown or wrong."""


class WeightsError(ValueError):
    """A tensor does not fit the configuration."""


def check_choice(config: object, name: str, choices: type[StrEnum]) -> None:
    """Replace a field's value by the member of `choices` that it names."""
    value = getattr(config, name)
    try:
        object.__setattr__(config, name, choices(value))
    except ValueError:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}") from None


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Check that a field is a whole number from `least` to `MAX_SIZE`."""
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number from {least} to {MAX_SIZE}")


def check_flags(config: Any) -> None:
    """Check that the fields of type bool are true or false."""
    for field in fields(config):
        if field.type is bool and not isinstance(getattr(config, field.name), bool):
            raise ConfigError(f"{field.name} is {getattr(config, field.name)!r}: it must be true or false")


def check_eps(name: str, value: Any) -> None:
    """Check that a field is a number that keeps a norm finite."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ConfigError(f"{name} is {value!r}: it must be a number between 0 and 1")


def check_pad_id(pad_id: Any, vocabulary_size: int, positions: Positions) -> None:
    """Check that a token id without a position is a token id, and that positions are learned."""
    if type(pad_id) is not int or not 0 <= pad_id < vocabulary_size:
        raise ConfigError(f"pad_id is {pad_id!r}: it must be a token id, 0 to vocabulary_size - 1")
    if positions is not Positions.LEARNED:
        raise ConfigError(f"pad_id is {pad_id}, but positions is {positions}: pad_id needs learned positions")


def resolve_local_layers(config: Any) -> None:
    """Turn a list of local layers into a tuple, and check the layers and their window."""
    layers = config.local_layers
    if not isinstance(layers, (list, tuple)) or not all(
        type(each) is int and 0 <= each < config.layers for each in layers
    ):
        raise ConfigError(
            f"local_layers is {layers!r}: it must be a list of numbers of layers, 0 to {config.layers - 1}"
        )
    object.__setattr__(config, "local_layers", tuple(sorted(set(layers))))
    if config.window and not layers:
        raise ConfigError(f"window is {config.window} without local_layers: name these layers, or set window to 0")
    if config.window < 1 and layers and config.mask is Mask.SELF_EXCLUDING:
        raise ConfigError(f"window is {config.window}: it must be 1 or more when mask is {config.mask}")


def resolve_experts(config: Any) -> None:
    """Replace `active_experts` of 0 by all experts, and check that experts fit the other fields."""
    if config.active_experts > config.experts:
        raise ConfigError(f"active_experts is {config.active_experts}: it must be at most experts, {config.experts}")
    if config.experts and not config.output_projection:
        raise ConfigError(
            f"experts is {config.experts}, but output_projection is false: set it to true, because each head has this "
            "many output projections"
        )
    if config.experts:
        object.__setattr__(config, "active_experts", config.active_experts or config.experts)
        for name in ("value_bias", "output_bias"):
            object.__setattr__(config, name, False)
