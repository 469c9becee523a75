"""The configuration of a decoder that runs once over each sequence, after the encoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder whose input is the encoder's own sequence, moved by one place: row i has token i − 1.

    So it computes a vector for each token in one pass, and generates nothing. Each layer attends to the rows before it,
    then to all rows of the encoder, and ends with a feed-forward block (https://arxiv.org/abs/1706.03762, section 3.1).
    Fields that are not here have the values of the encoder.

    Attributes:
        layers: number of decoder layers.
        d_ff: width between the two feed-forward layers.
        start_id: token id of the first row.
    """

    layers: int
    d_ff: int
    start_id: int
