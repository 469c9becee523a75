"""The configuration of a head, the part after an encoder that computes one number for each label."""

from dataclasses import dataclass
from enum import StrEnum


class HeadPooling(StrEnum):
    """How the hidden rows of a sequence become the vector that a head scores.

    CLS: the first row. MEAN: the mean of all rows. LAST: the last row. PREFIX_MEAN: the mean of the first `prefix_rows`
    rows. PATCH_MEAN: the mean of the rows after them, the patches of an image. CLS_AND_PATCH_MEAN: the first row, and
    then PATCH_MEAN.
    """

    CLS = "cls"
    MEAN = "mean"
    LAST = "last"
    PREFIX_MEAN = "prefix_mean"
    PATCH_MEAN = "patch_mean"
    CLS_AND_PATCH_MEAN = "cls_and_patch_mean"


class HeadActivation(StrEnum):
    """Activation between the two linear layers of a head."""

    TANH = "tanh"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"


class ScoreFunction(StrEnum):
    """How logits become scores; a server applies it, so a caller can also get the logits."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    RELU = "relu"


@dataclass(frozen=True)
class HeadConfig:
    """A head computes logits from vectors x: W_2 norm(activation(W_1 x + b_1)) + b_2, or W_2 norm(x) + b_2.

    Attributes:
        labels: names of the labels, one for each logit.
        function: how logits become scores.
        per_token: whether each token has logits; otherwise each sequence has.
        pooling: how the rows of a sequence become x; with `per_token`, x is each row.
        activation: the activation; None for a head without W_1.
        norm: whether there is the norm, which is of the encoder's kind.
        bias: whether there is b_2.
    """

    labels: tuple[str, ...]
    function: ScoreFunction
    per_token: bool = False
    pooling: HeadPooling = HeadPooling.CLS
    activation: HeadActivation | None = None
    norm: bool = False
    bias: bool = True

    @property
    def finds_answers(self) -> bool:
        """Whether the two logits of a token are those of the start and of the end of an answer.

        The scores of other heads of tokens are probabilities of labels.
        """
        return self.per_token and self.function is ScoreFunction.IDENTITY

    @property
    def weighs_tokens(self) -> bool:
        """Whether the only logit of a token is its weight in a sparse vector."""
        return self.per_token and self.function is ScoreFunction.RELU

    @property
    def output(self) -> str:
        """Name of the graph output that holds the logits."""
        return "token_logits" if self.per_token else "logits"
