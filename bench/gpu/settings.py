"""Settings of a GPU check: the provider, and the sizes of its runs."""

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
        rounds: timed rounds; results are medians over the rounds.
        trace_tokens: tokens of the trace that is encoded in every round.
        ragged_tokens: tokens of a batch of mixed lengths.
        batch_tokens: tokens of the batches that are compared with the matrix rate.
        matrix: rows of the square matrices that measure the device's matrix rate.
        requests: requests of one short sequence.
        shapes: random batches that run between two measurements of memory.
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
# Rehearsal on the CPU with tiny models, which only shows that every part runs.
CPU = Effort(3, 4096, 1024, (256, 512, 1024), matrix=512, requests=200, shapes=300)
CPU_QUICK = replace(CPU, rounds=1, trace_tokens=2048, requests=50, shapes=60)


@dataclass(frozen=True)
class Settings:
    """Settings of all parts; without a checkpoint of all-MiniLM-L6-v2, random weights of its shape are used."""

    provider: Provider
    effort: Effort
    checkpoint: Path | None
    folder: Path

    @property
    def tiny(self) -> bool:
        """Whether models are tiny, because there is no GPU."""
        return self.provider == "cpu"

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Checked precisions that the provider serves, the fastest last."""
        return ("fp32",) if self.provider == "cpu" else ("fp32", "fp16")

    @property
    def fastest(self) -> Precision:
        """The precision that is timed."""
        return self.precisions[-1]

    @property
    def device(self) -> torch.device:
        """Device that runs PyTorch."""
        return torch.device(self.provider)

    def synchronize(self) -> None:
        """Wait until the GPU has finished PyTorch's work."""
        if self.provider == "cuda":
            torch.cuda.synchronize()
