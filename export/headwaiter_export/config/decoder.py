"""The configuration of a decoder that runs once after the encoder, and generates nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder over the rows of the encoder, as in https://arxiv.org/abs/1706.03762, section 3.1.

    A row attends to the rows of its sequence up to this one, then to all rows of the encoder; a feed-forward block ends
    the layer. Fields that are not here have the values of the encoder.

    Attributes:
        layers: number of decoder layers.
        d_ff: width between the two feed-forward layers.
        start_id: token id of the first row.
        reads_text: whether row i has token i − 1 of the encoder's own sequence, and the hidden rows are those of the
            decoder. Otherwise the decoder has the first row alone, from which the head computes the logits of the
            sequence, and the hidden rows are those of the encoder.
    """

    layers: int
    d_ff: int
    start_id: int
    reads_text: bool = True
