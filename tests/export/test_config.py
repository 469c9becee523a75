"""A configuration is validated once, and each error names the field and what would be right."""

from typing import Any

import pytest

from headwaiter_export.config import ConfigError, EncoderConfig, Pooling

SIZES: dict[str, Any] = {"vocabulary_size": 50, "d_model": 32, "heads": 4, "layers": 2, "d_ff": 64, "max_tokens": 16}


def test_a_configuration_survives_json() -> None:
    config = EncoderConfig(**SIZES, pooling=Pooling.CLS, normalize=True)
    assert EncoderConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"heads": 5}, "heads is 5, which does not divide d_model 32: set head_dim"),
        ({"head_dim": -1}, "head_dim is -1: it must be a whole number from 0 to 16777216"),
        (
            {"head_dim": 4, "output_projection": False},
            "residual is true, but 4 heads of 4 are 16 wide, and d_model is 32: turn it off, or output_projection on",
        ),
        (
            {"head_dim": 4, "output_projection": False, "residual": False},
            "layers is 2, but 4 heads of 4 are 16 wide, and d_model is 32: set it to 1, or turn output_projection on",
        ),
        ({"value_dim": 1.5}, "value_dim is 1.5: it must be a whole number from 0 to 16777216"),
        (
            {"value_dim": 6, "output_projection": False},
            "residual is true, but 4 heads of 6 are 24 wide, and d_model is 32: turn it off, or output_projection on",
        ),
        ({"learned_temperature": 1}, "learned_temperature is 1: it must be true or false"),
        ({"key_bias": None}, "key_bias is None: it must be true or false"),
        ({"output_projection": "no"}, "output_projection is 'no': it must be true or false"),
        ({"mask": "future"}, "mask is 'future': choose one of none, causal, self_excluding"),
        (
            {"mask": "self_excluding", "max_tokens": 1},
            "max_tokens is 1: it must be 2 or more where mask is self_excluding",
        ),
        ({"norm": "both"}, "norm is 'both': choose one of post, pre, none"),
        ({"layers": 0}, "layers is 0: it must be a whole number from 1 to 16777216"),
        ({"d_ff": 2.5}, "d_ff is 2.5: it must be a whole number from 0 to 16777216"),
        ({"max_tokens": True}, "max_tokens is True: it must be a whole number from 1 to 16777216"),
        ({"vocabulary_size": -1}, "vocabulary_size is -1"),
        ({"vocabulary_size": 0}, "set vocabulary_size or feature_width, not both"),
        (
            {"vocabulary_size": 0, "feature_width": 8, "feature_projection": False},
            "feature_projection is false, but feature_width is 8 and d_model 32: make them equal, or turn it on",
        ),
        ({"feature_width": 8}, "set vocabulary_size or feature_width, not both"),
        ({"activation": "mish"}, "activation is 'mish': choose one of gelu, gelu_tanh, relu, silu"),
        ({"pooling": "sum"}, "pooling is 'sum': choose one of none, mean, cls, max, last"),
        ({"positions": "alibi"}, "positions is 'alibi': choose one of learned, sinusoidal, rotary, none"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim is 5: it must be even where positions is rotary"),
        (
            {"positions": "sinusoidal", "d_model": 33, "head_dim": 8},
            "d_model is 33: it must be even where positions is sinusoidal",
        ),
        ({"norm_eps": 0.0}, "norm_eps is 0.0: it must be a number between 0 and 1"),
        ({"embedding_norm": 1}, "embedding_norm is 1: it must be true or false"),
        ({"pooling": "none", "normalize": True}, "choose a pooling or turn it off"),
        (
            {"vocabulary_size": 0, "feature_width": 8, "pooling": "cls", "positions": "none"},
            "pooling is cls, but features have no class token: choose mean, max or last, or learned positions",
        ),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("(", r"\(")):
        EncoderConfig(**{**SIZES, **change})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"d_model": 8, "colour": 1}', "unknown field 'colour'"),
        ('{"d_model": 8}', "heads is missing"),
    ],
)
def test_json_that_is_no_configuration_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EncoderConfig.from_json(text)
