"""Weights fit the configuration, or an error names the tensor or field."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError, WeightsError
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from tests.support.export.helpers import assert_mentions, random_encoder, random_sequences


def hidden(encoder: Encoder) -> Tensor:
    (sequence,) = random_sequences(encoder.config, (9,))
    with torch.inference_mode():
        rows: Tensor = encoder(torch.from_numpy(sequence), SingleSequence(9))[1]
    return rows


def changed(encoder: Encoder, **changes: Any) -> EncoderConfig:
    return EncoderConfig(**{**vars(encoder.config), **changes})


@pytest.mark.parametrize("positions", Positions)
def test_an_encoder_is_rebuilt_from_its_configuration_and_weights(positions: Positions) -> None:
    encoder = random_encoder(feature_width=6, layers=1, positions=positions)
    assert torch.equal(hidden(Encoder.with_weights(encoder.config, encoder.state_dict())), hidden(encoder))


def test_learned_positions_beyond_the_maximum_are_dropped() -> None:
    encoder = random_encoder(feature_width=6, layers=1, max_tokens=48)
    shorter = Encoder.with_weights(changed(encoder, max_tokens=9), encoder.state_dict())
    assert torch.equal(hidden(shorter), hidden(encoder))


def test_fewer_learned_positions_than_the_maximum_are_refused() -> None:
    encoder = random_encoder(feature_width=6, layers=1, max_tokens=48)
    with pytest.raises(ConfigError) as error:
        Encoder.with_weights(changed(encoder, max_tokens=49), encoder.state_dict())
    assert_mentions(error.value, "max_tokens", "49", "48")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"final_norm": True}, ["norm.weight [24]", "norm.bias [24]"]),
        ({"key_bias": False}, ["layers.0.attention.key.bias"]),
        ({"head_dim": 12, "value_dim": 8}, ["layers.0.attention.query.weight", "[24, 24]", "[36, 24]"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_shapes(changes: dict[str, Any], facts: list[str]) -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    with pytest.raises(WeightsError) as error:
        Encoder.with_weights(changed(encoder, **changes), encoder.state_dict())
    assert_mentions(error.value, *facts)
