"""A configuration is validated when it is created; an error names the field, its value and the allowed values."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import MAX_SIZE, ConfigError
from headwaiter_export.config.head import HeadConfig, ScoreFunction
from tests.support.export.helpers import assert_mentions

HEAD = HeadConfig(("one", "two"), ScoreFunction.SOFTMAX, per_token=True)
IMAGES: dict[str, Any] = {
    "vocabulary_size": 0,
    "feature_width": 8,
    "prefix_rows": 1,
    "fixed_length": True,
    "max_tokens": 17,
}
GRID = {**IMAGES, "distance_bias": True, "distance_grid": 4}
SIZES: dict[str, Any] = {"vocabulary_size": 50, "d_model": 32, "heads": 4, "layers": 2, "d_ff": 64, "max_tokens": 16}


def test_a_configuration_is_the_same_after_json() -> None:
    chain: Any = [{"kind": "dense", "width": 8}, {"kind": "normalize"}, {"kind": "layer_norm"}]
    config = EncoderConfig(**SIZES, pooling=Pooling.CLS, after_pooling=chain, normalize=True)
    assert (config.width, config.pooled_width) == (32, 8)
    assert EncoderConfig.from_dict(json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"heads": 5}, ["heads is 5", "d_model 32", "head_dim"]),
        ({"head_dim": -1}, ["head_dim is -1", f"from 0 to {MAX_SIZE}"]),
        ({"head_dim": 4, "output_projection": False}, ["residual is true", "4 heads", "16", "32", "output_projection"]),
        (
            {"head_dim": 4, "output_projection": False, "residual": False},
            ["layers is 2", "4 heads", "16", "32", "output_projection"],
        ),
        ({"value_dim": 1.5}, ["value_dim is 1.5", f"from 0 to {MAX_SIZE}"]),
        ({"value_dim": 6, "output_projection": False}, ["residual is true", "4 heads", "6", "24", "32"]),
        ({"learned_temperature": 1}, ["learned_temperature is 1", "true or false"]),
        ({"learned_temperature": True, "query_key_norm": True}, ["learned_temperature", "query_key_norm"]),
        ({"key_bias": None}, ["key_bias is None", "true or false"]),
        ({"output_projection": "no"}, ["output_projection is 'no'", "true or false"]),
        ({"mask": "future"}, ["mask is 'future'", "none, causal, self_excluding"]),
        ({"mask": "self_excluding", "max_tokens": 1}, ["max_tokens is 1", "2 or more", "self_excluding"]),
        ({"norm": "both"}, ["norm is 'both'", "post, pre, sandwich, none"]),
        ({"layers": 0}, ["layers is 0", f"from 1 to {MAX_SIZE}"]),
        ({"window": 8}, ["window is 8", "local_layers"]),
        ({"gated": True, "d_ff": 0}, ["gated is true", "d_ff is 0"]),
        ({"convolution_kernel": 2}, ["convolution_kernel is 2", "odd"]),
        ({"convolution_kernel": 3, "d_ff": 0}, ["convolution_kernel is 3", "feed-forward"]),
        ({"d_ff": 2.5}, ["d_ff is 2.5", f"from 0 to {MAX_SIZE}"]),
        ({"max_tokens": True}, ["max_tokens is True", f"from 1 to {MAX_SIZE}"]),
        ({"vocabulary_size": -1}, ["vocabulary_size is -1"]),
        ({"vocabulary_size": 0}, ["vocabulary_size is 0", "feature_width 0"]),
        (
            {"vocabulary_size": 0, "feature_width": 8, "feature_projection": False},
            ["feature_projection is false", "feature_width is 8", "d_model 32"],
        ),
        ({"feature_width": 8}, ["vocabulary_size is 50", "feature_width 8"]),
        ({"activation": "mish"}, ["activation is 'mish'", "gelu, gelu_tanh, quick_gelu, relu, silu"]),
        ({"pooling": "sum"}, ["pooling is 'sum'", "none, mean, cls, max, last, weighted_mean"]),
        ({"positions": "absolute"}, ["positions is 'absolute'", "sinusoidal, rotary, rotary_grid, alibi, none"]),
        ({"positions": "alibi", "distance_bias": True}, ["distance_bias is true", "positions is alibi"]),
        ({**GRID, "distance_bias": False}, ["distance_bias is False", "distance_grid 4", "True"]),
        ({**GRID, "prefix_rows": 2}, ["prefix_rows is 2", "set it to 1"]),
        ({**GRID, "max_tokens": 16}, ["max_tokens is 16", "set it to 17"]),
        ({**GRID, "fixed_length": False}, ["fixed_length is False"]),
        ({**GRID, "mask": "causal"}, ["mask is causal", "none"]),
        ({**GRID, "local_layers": [0], "window": 3}, ["local_layers is (0,)"]),
        ({**GRID, "distance_keys": True}, ["distance_keys is True"]),
        ({**GRID, "distance_queries": True}, ["distance_queries is True"]),
        ({"positions": "rotary", "head_dim": 5}, ["head_dim is 5", "even", "rotary"]),
        ({"positions": "rotary_grid", "head_dim": 6}, ["head_dim is 6", "multiple of 4", "rotary_grid"]),
        ({"positions": "sinusoidal", "d_model": 33, "head_dim": 8}, ["d_model is 33", "even", "sinusoidal"]),
        ({"positions": "sinusoidal", "embedding_width": 7}, ["embedding_width is 7", "even", "sinusoidal"]),
        ({"vocabulary_size": 0, "feature_width": 6, "embedding_width": 8}, ["embedding_width is 8", "features"]),
        ({"norm_eps": 0.0}, ["norm_eps is 0.0", "between 0 and 1"]),
        ({"embedding_norm": 1}, ["embedding_norm is 1", "true or false"]),
        ({"pooling": "none", "normalize": True}, ["normalize", "pooling 'none'"]),
        ({"pooling": "concatenated"}, ["pooling is concatenated", "concatenated is ()", "two poolings or more"]),
        ({"concatenated": ["cls", "mean"]}, ["pooling is mean", "concatenated is ['cls', 'mean']", "leave"]),
        ({"pooling": "concatenated", "concatenated": ["cls"]}, ["concatenated is ['cls']", "two poolings or more"]),
        ({"pooling": "patch_mean"}, ["patch_mean", "prefix_rows is 0", "from 1"]),
        ({"pooling": "concatenated", "concatenated": ["cls", "prefix_mean"]}, ["prefix_mean", "prefix_rows is 0"]),
        ({**IMAGES, "max_tokens": 1, "pooling": "patch_mean"}, ["patch_mean", "prefix_rows is 1"]),
        ({**IMAGES, "fixed_length": False, "pooling": "patch_mean"}, ["patch_mean", "fixed_length"]),
        ({"pooling": "concatenated", "concatenated": "cls"}, ["concatenated is 'cls'", "list of mean, cls"]),
        ({"pooling": "concatenated", "concatenated": ["cls", "attention"]}, ["concatenated is ['cls', 'attention']"]),
        ({"after_pooling": [{"kind": "truncate"}]}, ["width is 0"]),
        ({"after_pooling": [{"kind": "truncate", "width": 33}]}, ["after_pooling keeps 33 values of 32"]),
        ({"after_pooling": "dense"}, ["after_pooling is 'dense'", "list of modules"]),
        ({"after_pooling": ["dense"]}, ["'dense' is not a module", "kind"]),
        ({"after_pooling": [{"width": 8}]}, ["{'width': 8} is not a module", "kind"]),
        ({"after_pooling": [{"kind": "dense", "size": 8}]}, ["'size'", "width"]),
        ({"after_pooling": [{"kind": "conv"}]}, ["kind is 'conv'", "dense, layer_norm, normalize"]),
        ({"after_pooling": [{"kind": "dense"}]}, ["width is 0", f"from 1 to {MAX_SIZE}"]),
        ({"after_pooling": [{"kind": "dense", "width": 8, "bias": 1}]}, ["bias is 1", "true or false"]),
        ({"after_pooling": [{"kind": "dense", "width": 8, "activation": "mish"}]}, ["activation is 'mish'", "tanh"]),
        ({"after_pooling": [{"kind": "dense", "width": 8, "eps": 0.1}]}, ["eps is 0.1", "dense"]),
        ({"after_pooling": [{"kind": "layer_norm", "width": 8}]}, ["width is 8", "layer_norm"]),
        ({"after_pooling": [{"kind": "layer_norm", "eps": 0}]}, ["eps is 0", "between 0 and 1"]),
        ({"after_pooling": [{"kind": "normalize"}]}, ["after_pooling ends with", "normalize to true"]),
        (
            {"after_pooling": [{"kind": "dense", "width": 8}], "pooling": "none"},
            ["after_pooling", "pooling 'none'", "row_modules"],
        ),
        ({"row_modules": "dense"}, ["row_modules is 'dense'", "list of modules"]),
        ({"expansion_id": 50}, ["expansion_id is 50", "token id"]),
        ({"expansion_id": True}, ["expansion_id is True", "token id"]),
        ({"expansion_id": 3, "mask": "self_excluding"}, ["expansion_id is 3", "self_excluding"]),
        ({"active_experts": 2}, ["active_experts is 2", "at most experts, 0"]),
        ({"experts": 2, "active_experts": 3}, ["active_experts is 3", "at most experts, 2"]),
        ({"experts": 2, "output_projection": False, "residual": False}, ["experts is 2", "output_projection is false"]),
        ({"prefix_rows": 1}, ["prefix_rows is 1", "feature_width"]),
        ({"vocabulary_size": 0, "feature_width": 8, "prefix_rows": 17}, ["prefix_rows is 17", "max_tokens, 16"]),
        (
            {"vocabulary_size": 0, "feature_width": 8, "pooling": "cls", "positions": "none"},
            ["pooling is cls", "positions are 'none'", "learned positions"],
        ),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        EncoderConfig(**{**SIZES, **change})
    assert_mentions(error.value, *facts)


@pytest.mark.parametrize(
    ("fields", "facts"),
    [({"d_model": 8, "colour": 1}, ["'colour'", "d_model"]), ({"d_model": 8}, ["heads"])],
)
def test_an_unknown_or_missing_field_is_named(fields: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        EncoderConfig.from_dict(fields)
    assert_mentions(error.value, *facts)
