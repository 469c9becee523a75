"""Configurations that together contain every pair of values of two EncoderConfig fields: the presets, and others.

Values are small, so that an encoder processes hundreds of sequences in a second. Some fit together and some do not: 2
heads of 12 and 4 heads of 6 fill a model of width 24, but 1 head of 5 does not.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

from headwaiter_export.config import Activation, ConfigError, EncoderConfig, Mask, Norm, Pooling, Positions
from headwaiter_export.presets import PRESETS

BOTH = (False, True)
VALUES: dict[str, tuple[Any, ...]] = {
    "vocabulary_size": (0, 50),
    "feature_width": (0, 12, 24),
    "feature_projection": BOTH,
    "d_model": (12, 24),
    "embedding_width": (10, 12, 24),
    "heads": (1, 2, 4),
    "head_dim": (5, 6, 8),
    "value_dim": (5, 6, 12),
    "learned_temperature": BOTH,
    "query_bias": BOTH,
    "key_bias": BOTH,
    "value_bias": BOTH,
    "output_projection": BOTH,
    "output_bias": BOTH,
    "mask": tuple(Mask),
    "distance_bias": BOTH,
    "layers": (1, 2),
    "d_ff": (0, 20),
    "residual": BOTH,
    "norm": tuple(Norm),
    "final_norm": BOTH,
    "max_tokens": (40, 48),
    "fixed_length": BOTH,
    "prefix_rows": (0, 2),
    "positions": tuple(Positions),
    "embedding_norm": BOTH,
    "activation": tuple(Activation),
    "norm_eps": (1e-12, 1e-5),
    "pooling": tuple(Pooling),
    "normalize": BOTH,
}
# Fields of each preset, with small values from `VALUES`.
PRESET_CHOICES: dict[str, dict[str, Any]] = {
    "vit-block": {"d_model": 24, "heads": 2, "head_dim": 5},
    "concat-heads": {"d_model": 24, "pooling": "last"},
    "projected-heads": {"positions": "rotary_grid", "d_model": 12, "heads": 2, "head_dim": 8, "value_dim": 12},
    "masked-heads": {"d_model": 24},
    "transformer-encoder": {"d_model": 24, "heads": 4, "d_ff": 20, "layers": 2, "vocabulary_size": 50},
    "attention-block": {"d_model": 12, "heads": 2, "pooling": "max"},
}
_DRAWS = 10_000

# Two fields with their values.
Pair = tuple[tuple[str, Any], tuple[str, Any]]


@cache
def pairwise_configs() -> tuple[EncoderConfig, ...]:
    """Return configurations that together contain every pair of values in `valid_configs`.

    The presets come first. Each further configuration is the one that adds the most new pairs.
    """
    pair_numbers: dict[Pair, int] = {}
    # Each configuration's pairs as the bits of one number.
    bits = {
        config: sum(1 << pair_numbers.setdefault(pair, len(pair_numbers)) for pair in pairs(config))
        for config in valid_configs()
    }
    chosen = [
        PRESETS[name]({"max_tokens": 48, "pooling": "mean", **choices}) for name, choices in PRESET_CHOICES.items()
    ]
    missing = (1 << len(pair_numbers)) - 1
    for config in chosen:
        missing &= ~sum(1 << pair_numbers[pair] for pair in pairs(config))
    while missing:
        chosen.append(max(bits, key=lambda config: (bits[config] & missing).bit_count()))
        missing &= ~bits[chosen[-1]]
    return tuple(chosen)


@cache
def valid_configs() -> tuple[EncoderConfig, ...]:
    """Draw random values for all fields, `_DRAWS` times, and return the configurations that EncoderConfig accepts."""
    random = Random(0)
    valid = []
    for _ in range(_DRAWS):
        with suppress(ConfigError):
            valid.append(EncoderConfig(**{name: random.choice(values) for name, values in VALUES.items()}))
    return tuple(valid)


def pairs(config: EncoderConfig) -> Iterator[Pair]:
    """Yield the pairs of a configuration, after EncoderConfig has filled in its fields."""
    return combinations([(name, getattr(config, name)) for name in VALUES], 2)
