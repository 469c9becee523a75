"""The configuration of a head, the part after an encoder that computes one number for each label."""

from dataclasses import dataclass
from enum import StrEnum

from headwaiter_export.config.choices import Pooling


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


def usual_function(labels: int) -> ScoreFunction:
    """Return how logits become scores in `TextClassificationPipeline` of transformers, for a number of labels."""
    return ScoreFunction.SIGMOID if labels == 1 else ScoreFunction.SOFTMAX


@dataclass(frozen=True)
class HeadConfig:
    """A head computes logits from vectors x: W_2 norm(activation(W_1 x + b_1)) + b_2, or W_2 norm(x) + b_2.

    Attributes:
        labels: names of the labels, one for each logit.
        function: how logits become scores.
        per_token: whether each token has logits; otherwise each sequence has.
        poolings: how the rows of a sequence become x, the vectors of these poolings one after another; with
            `per_token`, x is each row.
        activation: the activation; None for a head without W_1.
        norm: whether there is the norm, which is of the encoder's kind.
        bias: whether there is b_2.
        pad_id: a token id that `Pooling.LAST` of the head skips at the end of a sequence.
    """

    labels: tuple[str, ...]
    function: ScoreFunction
    per_token: bool = False
    poolings: tuple[Pooling, ...] = (Pooling.CLS,)
    activation: HeadActivation | None = None
    norm: bool = False
    bias: bool = True
    pad_id: int | None = None

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
