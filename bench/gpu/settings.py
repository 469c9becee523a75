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
BUDGET_S, START_S = 480.0, 450.0


@dataclass(frozen=True)
class Effort:
    """Sizes of the runs.

    Attributes:
        rounds: timed rounds of a whole trace; results are medians over the rounds.
        batch_rounds: the same of one batch.
        trace_tokens: tokens of the trace that is encoded in every round.
        ragged_tokens: tokens of a batch of mixed lengths.
        form_tokens: the same for the small models of all forms.
        batch_tokens: tokens of the batches whose times are compared.
        matrix: rows of the square matrices that measure the device's matrix rate.
        full_batch_tokens: the size of those that stand for a full batch.
        traces: how often the trace is sent in one run, so that a run takes seconds.
        requests: requests of one short sequence.
        shapes: random batches that run between two measurements of memory.
        lengths: lengths of the trace's sequences.
        calls_s: seconds of each load of calls of one text.
        callers: numbers of these calls in flight.
        load_processes: processes that send them.
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
    full_batch_tokens: int = 32_768
    traces: int = 8
    lengths: LogNormal = MEDIAN_90
    batch_rounds: int = 20
    calls_s: float = 2.5
    callers: tuple[int, ...] = (1, 64, 128, 384)
    load_processes: int = 6
    processes: int = max(1, min(8, (os.cpu_count() or 1) // 2))
    reduce: Callable[[EncoderConfig], EncoderConfig] = lambda config: config


FULL = Effort(3, 262_144, 65_536, (1024, 4096, 16_384, 32_768, 65_536), matrix=8192, requests=500, shapes=5000)
QUICK = replace(FULL, rounds=1, trace_tokens=131_072, requests=100, shapes=500, calls_s=1.0)


@dataclass(frozen=True)
class Settings:
    """Settings of all parts; without a checkpoint of all-MiniLM-L6-v2, random weights of its shape are used."""

    effort: Effort
    checkpoint: Path | None
    folder: Path
    gpu: Gpu = field(default_factory=Gpu)
