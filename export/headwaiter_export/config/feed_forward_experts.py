"""The configuration of a mixture of experts in the feed-forward blocks of some layers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FeedForwardExpertsConfig:
    """Several feed-forward blocks, the experts, of which each token uses some (https://arxiv.org/abs/2502.07972).

    Attributes:
        experts: number of experts, each of width d_ff.
        active: how many experts a token uses, those of the highest probability.
        layers: numbers of the layers with experts, from 0; the others have one feed-forward block.
    """

    experts: int
    active: int
    layers: tuple[int, ...]
