"""The configuration of a decoder that runs once after the encoder, and generates nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headwaiter_export.config.choices import DecoderInput, Mask
from headwaiter_export.config.field_checks import ConfigError, check_choice


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder over the rows of the encoder, as in https://arxiv.org/abs/1706.03762, section 3.1.

    A row attends to rows of the decoder, then to all rows of the encoder; a feed-forward block ends the layer. Fields
    that are not here have the values of the encoder.

    Attributes:
        layers: number of decoder layers.
        d_ff: width between the two feed-forward layers; 0 for no feed-forward block, without `self_attention`.
        input: what the decoder's rows stand for.
        start_id: token id of the first row; None for a decoder of features.
        mask: which rows of the decoder a row attends to.
        self_attention: whether a row attends to rows of the decoder at all.
    """

    layers: int
    d_ff: int
    input: DecoderInput = DecoderInput.TEXT
    start_id: int | None = None
    mask: Mask = Mask.CAUSAL
    self_attention: bool = True

    def __post_init__(self) -> None:
        try:
            check_choice(self, "mask", Mask)
            check_choice(self, "input", DecoderInput)
        except ConfigError as error:
            raise ConfigError(f"decoder.{error}") from None
        if not isinstance(self.self_attention, bool):
            raise ConfigError(f"decoder.self_attention is {self.self_attention!r}: it must be true or false")


def decoder_of_target(values: Any) -> DecoderConfig:
    """Create a decoder of targets from its fields, or raise ConfigError if a field is missing, unknown or wrong."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"decoder is {values!r}: it must be an object of fields")
    known = {each.name for each in fields(DecoderConfig)}
    if unknown := sorted(values.keys() - known):
        choices = ", ".join(sorted(known - {"input"}))
        raise ConfigError(f"unknown field decoder.{unknown[0]}: choose one of {choices}")
    if missing := sorted({"layers", "d_ff"} - values.keys()):
        raise ConfigError(f"field decoder.{missing[0]} is missing: set it")
    decoder = DecoderConfig(**{"input": DecoderInput.TARGET, **values})
    if decoder.input is not DecoderInput.TARGET:
        raise ConfigError(f"decoder.input is {decoder.input}: only checkpoints have one, leave it out")
    return decoder
