"""Settings of a GPU check: the GPU, and the sizes of its runs."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bench.gpu.cuda import Gpu
from bench.loads.traces import MEDIAN_90, LogNormal
from headwaiter_export.config.encoder import EncoderConfig

Precision = Literal["fp32", "fp16"]
# The precisions that CUDA serves. Only the last one is timed, because it is the fastest.
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
FASTEST = PRECISIONS[-1]
# The whole check should take at most BUDGET_S. No measurement starts later than START_S.
BUDGET_S, START_S = 480.0, 420.0


@dataclass(frozen=True)
class Effort:
    """Sizes of the runs.

    Attributes:
        rounds: timed rounds; results are medians over the rounds.
        trace_tokens: tokens of the trace that is encoded in every round.
        ragged_tokens: tokens of a batch of mixed lengths.
        form_tokens: the same for the small models of all forms.
        batch_tokens: tokens of the batches that are compared with the matrix rate.
        matrix: rows of the square matrices that measure the device's matrix rate.
        full_batch_tokens: batches of at least this size must reach a required share of the matrix rate.
        requests: requests of one short sequence.
        shapes: random batches that run between two measurements of memory.
        lengths: lengths of the trace's sequences.
        attention_tokens: lengths of the sequences on which attention alone is timed.
        processes: processes that write the graphs of all forms while others run; 0 writes them in this process.
        reduce: makes the configuration of a random model smaller.
    """

    rounds: int
    trace_tokens: int
    ragged_tokens: int
    batch_tokens: tuple[int, ...]
    matrix: int
    requests: int
    shapes: int
    form_tokens: int = 8192
    full_batch_tokens: int = 16_384
    lengths: LogNormal = MEDIAN_90
    attention_tokens: tuple[int, ...] = (128, 512, 2048, 8192)
    processes: int = max(1, min(8, (os.cpu_count() or 1) // 2))
    reduce: Callable[[EncoderConfig], EncoderConfig] = lambda config: config


FULL = Effort(5, 262_144, 65_536, (1024, 4096, 16_384, 32_768, 65_536), matrix=8192, requests=2000, shapes=20_000)
QUICK = replace(FULL, rounds=2, trace_tokens=131_072, requests=300, shapes=2000)


@dataclass(frozen=True)
class Settings:
    """Settings of all parts; without a checkpoint of all-MiniLM-L6-v2, random weights of its shape are used."""

    effort: Effort
    checkpoint: Path | None
    folder: Path
    gpu: Gpu = field(default_factory=Gpu)
