"""On what a check runs, and how much of it there is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from headwaiter_server.runtime.graph import Provider

Precision = Literal["fp32", "fp16"]


@dataclass(frozen=True)
class Effort:
    """Sizes of the runs.

    Attributes:
        rounds: of what is timed; figures are medians over them.
        trace_tokens: length of the trace that is encoded in every round.
        ragged_tokens: size of a ragged batch.
        batch_tokens: sizes of the batches whose share of the matrix rate is measured.
        matrix: side of the square matrices that are multiplied for the card's own rate.
        requests: how often the one short sequence is sent.
        shapes: random batches that run between two looks at the memory.
    """

    rounds: int
    trace_tokens: int
    ragged_tokens: int
    batch_tokens: tuple[int, ...]
    matrix: int
    requests: int
    shapes: int


FULL = Effort(5, 262_144, 65_536, (1024, 4096, 16_384, 32_768, 65_536), matrix=8192, requests=2000, shapes=20_000)
QUICK = replace(FULL, rounds=2, trace_tokens=131_072, requests=300, shapes=2000)
# On the CPU only that everything runs can be shown, on models of next to nothing.
CPU = Effort(3, 4096, 1024, (256, 512, 1024), matrix=512, requests=200, shapes=300)
CPU_QUICK = replace(CPU, rounds=1, trace_tokens=2048, requests=50, shapes=60)


@dataclass(frozen=True)
class Setting:
    """What every part is given.

    Attributes:
        provider: where graphs run.
        effort: how much is run.
        checkpoint: the folder of all-MiniLM-L6-v2; None where only its shape is known.
        folder: for graphs and bundles, gone in the end.
    """

    provider: Provider
    effort: Effort
    checkpoint: Path | None
    folder: Path

    @property
    def tiny(self) -> bool:
        """Whether models are reduced to next to nothing, as there is no card."""
        return self.provider == "cpu"

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that the provider serves of those that are checked, the fastest last."""
        return ("fp32",) if self.provider == "cpu" else ("fp32", "fp16")

    @property
    def fastest(self) -> Precision:
        """The precision that is timed."""
        return self.precisions[-1]

    @property
    def device(self) -> torch.device:
        """Where PyTorch runs."""
        return torch.device(self.provider)

    def synchronize(self) -> None:
        """Wait until the card has done what PyTorch asked of it."""
        if self.provider == "cuda":
            torch.cuda.synchronize()
