"""Times functions, and counts the arithmetic of a model."""

import statistics
from collections.abc import Callable, Iterable, Mapping

import torch

from bench.findings import Findings
from bench.gpu.settings import Settings
from bench.rounds import Rounds
from headwaiter_export.config.encoder import EncoderConfig

# Enough products to make the start of a run negligible.
_PRODUCTS = 10


def median_seconds(name: str, run: Callable[[], object], settings: Settings, rounds: int) -> float:
    """Return the median seconds of a number of runs, after one warm-up run; `name` says what runs."""
    run()
    return statistics.median(settings.gpu.seconds(name, run) for _ in range(rounds))


def rounds_of(
    runs: Mapping[str, Callable[[], object]], settings: Settings, findings: Findings, rounds: int
) -> dict[str, Rounds]:
    """Time each function once in every round, after a warm-up round, and return the seconds.

    If a function raises an error, the error becomes a finding, and the function has no result.
    """
    taken = {name: Rounds() for name in runs}
    for ran in range(rounds + 1):
        for name, run in runs.items():
            if len(taken[name]) == ran:
                with findings.attempt(name):
                    taken[name].append(settings.gpu.seconds(name, run))
    return {name: Rounds(each[1:]) for name, each in taken.items() if len(each) == rounds + 1}


def encoder_flops(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Return the floating-point operations of the matrix products for sequences of these lengths.

    A linear layer takes 2 operations for each weight and token. One head's attention takes 2·n·(head_dim + value_dim)
    operations for each of n tokens. Embeddings, norms, activations, softmax and pooling are not counted.
    """
    inner = config.heads * config.value_dim
    linear = config.d_model * (2 * config.heads * config.head_dim + inner)
    linear += inner * config.d_model if config.output_projection else 0
    attention = config.heads * (config.head_dim + config.value_dim)
    feed_forward = 2 * config.width * config.inner_width
    return sum(2 * n * (config.attention_layers * (linear + n * attention) + feed_forward) for n in lengths)


def matrix_rate(settings: Settings, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product in PyTorch, as the upper limit of the device."""
    side = settings.effort.matrix
    left, right = (torch.randn(side, side, device=settings.gpu.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(left, right, out=out)

    return _PRODUCTS * 2 * side**3 / median_seconds("matrix products", multiply, settings, 5)
