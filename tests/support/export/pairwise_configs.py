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

import numpy as np

from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Activation, DecoderInput, Mask, Norm, Pooling, Positions
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction
from headwaiter_export.config.presets import PRESETS
from headwaiter_export.config.rotary_scaling import RotaryScaling, ScalingKind
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig


def dense(width: int, **choices: Any) -> PooledModule:
    """Return a Dense module."""
    return PooledModule(kind=ModuleKind.DENSE, width=width, **choices)


BOTH = (False, True)
# Modules after pooling: like LaBSE's, like EmbeddingGemma's, and all others.
CHAINS = (
    (dense(10, activation="tanh"),),
    (dense(40, bias=False), dense(8, bias=False)),
    (
        PooledModule(kind=ModuleKind.NORMALIZE),
        dense(24),
        PooledModule(kind=ModuleKind.LAYER_NORM),
        dense(9, activation="gelu"),
        PooledModule(kind=ModuleKind.TRUNCATE, width=5),
    ),
)
# Scalings of which some pairs of heads of 6 and 8 keep their frequency, some get another, and some are in between.
LLAMA3 = RotaryScaling(kind=ScalingKind.LLAMA3, factor=8.0, trained_tokens=30)
YARN = RotaryScaling(
    kind=ScalingKind.YARN, factor=3.0, trained_tokens=9, slow_turns=0.1, whole_pairs=False, attention_factor=1.5
)
VALUES: dict[str, tuple[Any, ...]] = {
    "vocabulary_size": (0, 50),
    "token_types": (0, 2),
    "mask_id": (None, 5),
    "feature_width": (0, 12, 24),
    "feature_projection": BOTH,
    "d_model": (12, 24),
    "embedding_width": (10, 12, 24),
    "heads": (1, 2, 4),
    "head_dim": (5, 6, 8),
    "value_dim": (5, 6, 12),
    "learned_temperature": BOTH,
    "query_key_norm": BOTH,
    "query_bias": BOTH,
    "key_bias": BOTH,
    "value_bias": BOTH,
    "output_projection": BOTH,
    "output_bias": BOTH,
    "experts": (0, 2, 4),
    "active_experts": (0, 1, 2, 4),
    "mask": tuple(Mask),
    "distance_bias": BOTH,
    "distance_keys": BOTH,
    "distance_queries": BOTH,
    # Most scores of random encoders are beyond the first cap.
    "score_cap": (0.0, 0.5, 50.0),
    "layers": (1, 2),
    "convolution_kernel": (0, 3),
    "local_layers": ((), (0,), (1,)),
    "window": (0, 3),
    "d_ff": (0, 20),
    "gated": BOTH,
    "up_bias": BOTH,
    "down_bias": BOTH,
    "residual": BOTH,
    "norm": tuple(Norm),
    "first_norm": BOTH,
    "final_norm": BOTH,
    "rms_norm": BOTH,
    "max_tokens": (40, 48),
    "fixed_length": BOTH,
    "prefix_rows": (0, 2),
    "positions": tuple(Positions),
    "pad_id": (None, 3),
    "rotary_theta": (20.0, 10_000.0),
    "local_rotary_theta": (20.0, 10_000.0),
    "rotary_scaling": (None, LLAMA3),
    "local_rotary_scaling": (None, YARN),
    "rotary_float32": BOTH,
    "rotary_float16": BOTH,
    "embedding_norm": BOTH,
    "activation": tuple(Activation),
    "norm_eps": (1e-12, 1e-5),
    "decoder": (
        None,
        DecoderConfig(layers=2, d_ff=18, start_id=3),
        DecoderConfig(layers=2, d_ff=18, start_id=3, input=DecoderInput.START),
    ),
    # Poolings of images need fields that are rarely drawn together, and have a test of their own.
    "pooling": tuple(each for each in Pooling if each not in (Pooling.PREFIX_MEAN, Pooling.PATCH_MEAN)),
    "concatenated": ((), (Pooling.CLS, Pooling.MAX, Pooling.MEAN_SQRT_LEN)),
    "after_pooling": ((), *CHAINS),
    "row_modules": ((), CHAINS[1], (dense(24), PooledModule(kind=ModuleKind.NORMALIZE))),
    "normalize": BOTH,
    "vocabulary_head": (
        None,
        VocabularyHeadConfig(HeadActivation.GELU),
        VocabularyHeadConfig(HeadActivation.RELU, log_twice=True),
    ),
    "head": (
        HeadConfig(
            ("one", "two", "three", "four"),
            ScoreFunction.SIGMOID,
            poolings=(Pooling.MEAN,),
            activation=HeadActivation.GELU,
            norm=True,
        ),
        None,
        HeadConfig(
            ("one", "two", "three"),
            ScoreFunction.SOFTMAX,
            poolings=(Pooling.LAST, Pooling.MAX),
            activation=HeadActivation.TANH,
            bias=False,
        ),
        HeadConfig(("one", "two"), ScoreFunction.SOFTMAX, per_token=True),
        HeadConfig(("one", "two"), ScoreFunction.SOFTMAX, norm=True),
    ),
    "expansion_id": (None, 4),
}
# Fields of each preset, with small values from `VALUES`.
PRESET_CHOICES: dict[str, dict[str, Any]] = {
    "vit-block": {"d_model": 24, "heads": 2, "head_dim": 5, "after_pooling": CHAINS[0]},
    "concat-heads": {"d_model": 24, "pooling": "mean_sqrt_len", "max_tokens": 40, "query_key_norm": True},
    "projected-heads": {"after_pooling": CHAINS[1], "d_model": 12, "heads": 2, "head_dim": 8, "value_dim": 12},
    "masked-heads": {"d_model": 24, "pooling": "weighted_mean", "normalize": True, "positions": "alibi"},
    "transformer-encoder": {
        "after_pooling": CHAINS[2],
        "d_model": 24,
        "heads": 4,
        "d_ff": 20,
        "layers": 2,
        "vocabulary_size": 50,
    },
    "attention-block": {"d_model": 12, "heads": 2, "pooling": "none"},
    "switch-head": {
        "d_model": 24,
        "heads": 2,
        "head_dim": 6,
        "d_ff": 20,
        "layers": 2,
        "residual": True,
        "norm": "pre",
        "positions": "rotary",
        "pooling": "last",
    },
}
_DRAWS = 70_000

# Two fields with their values.
Pair = tuple[tuple[str, Any], tuple[str, Any]]


@cache
def pairwise_configs() -> tuple[EncoderConfig, ...]:
    """Return configurations that together contain every pair of values in `valid_configs`.

    The presets come first. Each further configuration is the one that adds the most new pairs.
    """
    presets = [
        PRESETS[name]({"max_tokens": 48, "pooling": "mean", **choices}) for name, choices in PRESET_CHOICES.items()
    ]
    candidates = (*presets, *valid_configs())
    # A row for each configuration, with a 1 for each value that it contains.
    numbers: dict[tuple[str, Any], int] = {}
    contained = [[numbers.setdefault(value, len(numbers)) for value in values(config)] for config in candidates]
    rows = np.zeros((len(candidates), len(numbers)), np.float32)
    np.put_along_axis(rows, np.array(contained), 1, axis=1)
    missing = np.triu(rows.T @ rows > 0, 1).astype(np.float32)
    chosen: list[int] = []
    while missing.any():
        gains = ((rows @ missing) * rows).sum(1)
        chosen.append(len(chosen) if len(chosen) < len(presets) else int(gains.argmax()))
        missing[np.ix_(contained[chosen[-1]], contained[chosen[-1]])] = 0
    return tuple(candidates[number] for number in chosen)


@cache
def valid_configs() -> tuple[EncoderConfig, ...]:
    """Draw random values for all fields, `_DRAWS` times, and return the configurations that EncoderConfig accepts."""
    random = Random(0)
    valid = []
    for _ in range(_DRAWS):
        drawn = {name: random.choice(values) for name, values in VALUES.items()}
        # Otherwise too many draws are refused.
        drawn["window"] = drawn["window"] if drawn["local_layers"] else 0
        drawn["active_experts"] = min(drawn["active_experts"], drawn["experts"])
        drawn["output_projection"] = drawn["output_projection"] or drawn["experts"] > 0
        drawn["gated"] = drawn["gated"] and drawn["d_ff"] > 0
        takes_decoder = drawn["vocabulary_size"] and drawn["output_projection"] and not drawn["experts"]
        takes_decoder = takes_decoder and not drawn["vocabulary_head"]
        drawn["decoder"] = drawn["decoder"] if takes_decoder else None
        if not drawn["vocabulary_size"]:
            drawn["vocabulary_head"] = None
        elif drawn["vocabulary_head"]:
            drawn |= {"pooling": Pooling.MAX, "after_pooling": (), "row_modules": (), "normalize": False}
        if not drawn["vocabulary_size"] or drawn["decoder"]:
            drawn |= {"mask_id": None, "expansion_id": None}
        drawn["concatenated"] = VALUES["concatenated"][drawn["pooling"] is Pooling.CONCATENATED]
        takes_pad_id = drawn["vocabulary_size"] and drawn["positions"] is Positions.LEARNED
        drawn["pad_id"] = drawn["pad_id"] if takes_pad_id else None
        with suppress(ConfigError):
            valid.append(EncoderConfig(**drawn))
    return tuple(valid)


def values(config: EncoderConfig) -> list[tuple[str, Any]]:
    """Return the fields of a configuration with their values, after EncoderConfig has filled in its fields."""
    return [(name, getattr(config, name)) for name in VALUES]


def pairs(config: EncoderConfig) -> Iterator[Pair]:
    """Yield the pairs of a configuration's values."""
    return combinations(values(config), 2)
