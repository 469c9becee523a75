"""The configuration of scaled rotary positions, for sequences longer than those of a model's first training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from headwaiter_export.config.field_checks import ConfigError, check_choice, check_size


class ScalingKind(StrEnum):
    """Which pairs of a head turn more slowly than without scaling.

    LINEAR: all pairs, by `factor` (https://arxiv.org/abs/2306.15595). LLAMA3 and YARN: those that turn fewer than
    `slow_turns` times in `trained_tokens` positions, by `factor`, but none that turn more than `fast_turns` times.
    Between them, the share of the slower frequency falls with the number of turns in LLAMA3
    (https://arxiv.org/abs/2407.21783, and `transformers`' `_compute_llama3_parameters`), and with the number of the
    pair in YARN (https://arxiv.org/abs/2309.00071, and `transformers`' `_compute_yarn_parameters`).
    """

    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How the frequencies of rotary positions are scaled.

    Attributes:
        kind: which frequencies are scaled.
        factor: the slowest pairs turn this many times more slowly.
        trained_tokens: most tokens of a sequence in the first training; for LLAMA3 and YARN.
        slow_turns: see ScalingKind.
        fast_turns: see ScalingKind; 0 stands for the value of the sources, 4 for LLAMA3 and 32 for YARN.
        whole_pairs: whether the first and the last pair that YARN interpolates are rounded to whole numbers.
        attention_factor: queries and keys are multiplied by this number in YARN; 0 stands for 0.1 · ln(factor) + 1.

    Raises:
        ConfigError: a field is wrong, or belongs to another kind.
    """

    kind: ScalingKind
    factor: float
    trained_tokens: int = 0
    slow_turns: float = 1.0
    fast_turns: float = 0.0
    whole_pairs: bool = True
    attention_factor: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self, "kind", ScalingKind)
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default and field.name not in _FIELDS[self.kind]:
                raise ConfigError(f"{field.name} is {value!r} in a scaling of kind {self.kind}: leave it out")
        for name in ("factor", "slow_turns", "fast_turns", "attention_factor"):
            _check_positive(name, getattr(self, name), or_zero=name in ("fast_turns", "attention_factor"))
        if not isinstance(self.whole_pairs, bool):
            raise ConfigError(f"whole_pairs is {self.whole_pairs!r}: it must be true or false")
        if self.kind is ScalingKind.LINEAR:
            return
        check_size("trained_tokens", self.trained_tokens)
        if not self.fast_turns:
            object.__setattr__(self, "fast_turns", 4.0 if self.kind is ScalingKind.LLAMA3 else 32.0)
        if self.fast_turns <= self.slow_turns:
            raise ConfigError(f"fast_turns is {self.fast_turns}: it must be above slow_turns, {self.slow_turns}")

    @classmethod
    def from_value(cls, value: Any) -> "RotaryScaling":
        """Create a scaling from an object of fields; return a scaling as it is."""
        if isinstance(value, cls):
            return value
        known = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping) or not {"kind", "factor"} <= value.keys() <= set(known):
            raise ConfigError(
                f"{value!r:.99} is not a scaling: write an object with kind and factor, and fields of {known[2:]}"
            )
        return cls(**value)

    @property
    def magnitude(self) -> float:
        """The number by which rotated queries and keys are multiplied."""
        if self.kind is ScalingKind.YARN:
            return self.attention_factor or 0.1 * math.log(max(1.0, self.factor)) + 1
        return 1.0


def resolve_rotary(config: Any) -> None:
    """Check the bases and the scalings of rotary positions of an EncoderConfig, and replace a local base of 0."""
    if config.local_rotary_theta == 0:
        object.__setattr__(config, "local_rotary_theta", config.rotary_theta)
    for prefix in ("", "local_"):
        theta, scaling = getattr(config, f"{prefix}rotary_theta"), getattr(config, f"{prefix}rotary_scaling")
        if type(theta) not in (int, float) or not 1 <= theta < math.inf:
            raise ConfigError(f"{prefix}rotary_theta is {theta!r}: it must be a number of at least 1")
        if scaling is not None:
            scaling = RotaryScaling.from_value(scaling)
            object.__setattr__(config, f"{prefix}rotary_scaling", scaling)
            if scaling.kind is ScalingKind.YARN and theta == 1:
                raise ConfigError(f"{prefix}rotary_theta is 1: it must be above 1 in a scaling of kind yarn")


_FIELDS: dict[ScalingKind, tuple[str, ...]] = {
    ScalingKind.LINEAR: (),
    ScalingKind.LLAMA3: ("trained_tokens", "slow_turns", "fast_turns"),
    ScalingKind.YARN: ("trained_tokens", "slow_turns", "fast_turns", "whole_pairs", "attention_factor"),
}


def _check_positive(name: str, value: Any, *, or_zero: bool) -> None:
    if type(value) not in (int, float) or not (0 < value < math.inf or (or_zero and value == 0)):
        raise ConfigError(f"{name} is {value!r}: it must be a number above 0")
