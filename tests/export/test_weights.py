"""Weights that are given fit the configuration, or one sentence names the tensor, or the field, that does not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.config import ConfigError, EncoderConfig, Positions, WeightsError
from headwaiter_export.encoder import Encoder
from tests.export.helpers import draw, random_encoder


def hidden(encoder: Encoder) -> Tensor:
    (sequence,) = draw(encoder.config, (9,))
    with torch.inference_mode():
        rows: Tensor = encoder(torch.from_numpy(sequence), SingleSequence(9))[1]
    return rows


def changed(encoder: Encoder, **changes: Any) -> EncoderConfig:
    return EncoderConfig(**{**vars(encoder.config), **changes})


@pytest.mark.parametrize("positions", Positions)
def test_an_encoder_is_its_configuration_and_its_weights(positions: Positions) -> None:
    encoder = random_encoder(feature_width=6, layers=1, positions=positions)
    assert torch.equal(hidden(Encoder.with_weights(encoder.config, encoder.state_dict())), hidden(encoder))


def test_of_more_learned_positions_than_the_maximum_the_first_are_taken() -> None:
    encoder = random_encoder(feature_width=6, layers=1, max_tokens=48)
    shorter = Encoder.with_weights(changed(encoder, max_tokens=9), encoder.state_dict())
    assert torch.equal(hidden(shorter), hidden(encoder))


def test_fewer_learned_positions_than_the_maximum_are_refused() -> None:
    encoder = random_encoder(feature_width=6, layers=1, max_tokens=48)
    sentence = "^max_tokens is 49, but the weights hold 48 learned positions: set it to 48 or less$"
    with pytest.raises(ConfigError, match=sentence):
        Encoder.with_weights(changed(encoder, max_tokens=49), encoder.state_dict())


def test_a_tensor_that_does_not_fit_is_named_with_what_would_be_right() -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    with pytest.raises(WeightsError, match=r"^the weights lack .* needs: norm\.weight \[24\], norm\.bias \[24\]$"):
        Encoder.with_weights(changed(encoder, final_norm=True), encoder.state_dict())
    with pytest.raises(
        WeightsError, match=r"^the configuration has no place for layers\.0\.attention\.key\.bias: leave"
    ):
        Encoder.with_weights(changed(encoder, key_bias=False), encoder.state_dict())
    with pytest.raises(
        WeightsError, match=r"^layers\.0\.attention\.query\.weight has the shape \[24, 24\]: .* must have \[36, 24\]$"
    ):
        Encoder.with_weights(changed(encoder, head_dim=12, value_dim=8), encoder.state_dict())
