"""The configuration of a head, the part after an encoder that computes one number for each label."""

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True)
class HeadConfig:
    """A head computes logits from hidden rows x: W_2 activation(W_1 x + b_1) + b_2, or W_2 x + b_2.

    Attributes:
        labels: names of the labels, one for each logit.
        function: how logits become scores.
        per_token: whether each token has logits; otherwise each sequence has, from its first row.
        activation: the activation; None for a head without W_1.
    """

    labels: tuple[str, ...]
    function: ScoreFunction
    per_token: bool = False
    activation: HeadActivation | None = None

    @property
    def output(self) -> str:
        """Name of the graph output that holds the logits."""
        return "token_logits" if self.per_token else "logits"
