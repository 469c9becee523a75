"""Checks of the fields of configurations."""

from enum import StrEnum
from typing import Any

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


def check_eps(name: str, value: Any) -> None:
    """Check that a field is a number that keeps a norm finite."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ConfigError(f"{name} is {value!r}: it must be a number between 0 and 1")
