"""The named choices among the fields of EncoderConfig, and among the options of the command."""

from enum import StrEnum


class Activation(StrEnum):
    """Activation between the feed-forward layers; QUICK_GELU is x · sigmoid(1.702 x)."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    RELU = "relu"
    SILU = "silu"


class Positions(StrEnum):
    """How the encoder knows a token's position.

    LEARNED and SINUSOIDAL add a vector to the embedding. ROTARY rotates queries and keys. ROTARY_GRID adds learned
    vectors, and rotates the queries and keys of patches by their place in a grid. ALIBI subtracts from each score a
    multiple of the distance from query to key. NONE ignores positions.
    """

    LEARNED = "learned"
    SINUSOIDAL = "sinusoidal"
    ROTARY = "rotary"
    ROTARY_GRID = "rotary_grid"
    ALIBI = "alibi"
    NONE = "none"


class Mask(StrEnum):
    """Which tokens of its sequence a token attends to.

    NONE: all tokens. CAUSAL: itself and the tokens before it. SELF_EXCLUDING: all tokens but itself.
    """

    NONE = "none"
    CAUSAL = "causal"
    SELF_EXCLUDING = "self_excluding"


class DecoderInput(StrEnum):
    """What the rows of a decoder stand for.

    TEXT: row i has token i − 1 of the encoder's own sequence. START: one row, that of the start token, from which the
    head computes the logits of the sequence; the hidden rows are those of the encoder. TARGET: a sequence consists of
    the rows of the encoder, the source, and then those of the decoder, the target.
    """

    TEXT = "text"
    START = "start"
    TARGET = "target"


class Norm(StrEnum):
    """Place of a block's norm: after the residual sum (POST), before the block (PRE), or absent (NONE).

    SANDWICH: one norm before the block, and another after it, before the residual sum.
    """

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"
    NONE = "none"


class Pooling(StrEnum):
    """How the hidden rows of a sequence become one pooled vector.

    CLS: the first row. LAST: the last row. WEIGHTED_MEAN: row i, counted from 1, has weight i
    (https://arxiv.org/abs/2202.08904, section 3.1). MEAN_SQRT_LEN: the sum divided by the square root of the length.
    ATTENTION: a learned query attends to all rows (https://arxiv.org/abs/2106.04560, section 3.1). CONCATENATED: the
    vectors of several poolings, one after another. PREFIX_MEAN: the mean of the first `prefix_rows` rows. PATCH_MEAN:
    the mean of the rows after them, which are the patches of an image.
    """

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST = "last"
    WEIGHTED_MEAN = "weighted_mean"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    ATTENTION = "attention"
    CONCATENATED = "concatenated"
    PREFIX_MEAN = "prefix_mean"
    PATCH_MEAN = "patch_mean"


# The poolings that need neither weights nor a list of poolings.
ROW_POOLINGS = tuple(each for each in Pooling if each not in (Pooling.NONE, Pooling.ATTENTION, Pooling.CONCATENATED))
# The choices of each field of EncoderConfig.
CHOICES_OF_FIELDS: dict[str, type[StrEnum]] = {
    "mask": Mask,
    "norm": Norm,
    "positions": Positions,
    "activation": Activation,
    "pooling": Pooling,
}
