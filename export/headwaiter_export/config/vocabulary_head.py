"""The configuration of a head that weighs each token of the vocabulary, for sparse vectors."""

from dataclasses import dataclass

from headwaiter_export.config.head import HeadActivation


@dataclass(frozen=True)
class VocabularyHeadConfig:
    """The head of a masked language model, whose logits become a sparse vector as in SPLADE.

    Row i has the logits W norm(activation(W_1 x_i + b_1)) + b, one for each token id. The vector of a sequence has
    log(1 + max(0, l)) for each token id, where l is the largest of its logits in the rows
    (https://arxiv.org/abs/2109.10086, equations 1 and 6).

    Attributes:
        activation: the activation between the linear layers.
        log_twice: whether log(1 + …) is applied twice, as in https://arxiv.org/abs/2504.14839.
    """

    activation: HeadActivation
    log_twice: bool = False
