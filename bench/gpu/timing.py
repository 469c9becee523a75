"""Times functions and the GPU's kernels, and counts the arithmetic of a model."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from bench.findings import Findings
from bench.gpu.settings import Settings
from bench.rounds import Rounds
from headwaiter_export.config import EncoderConfig

# Enough products to make the start of a run negligible.
_PRODUCTS = 10
_PROFILED_RUNS = 50


def seconds(run: Callable[[], object], settings: Settings) -> float:
    """Return the seconds of one run, including the device's work."""
    settings.synchronize()
    started_s = time.perf_counter()
    run()
    settings.synchronize()
    return time.perf_counter() - started_s


def median_seconds(run: Callable[[], object], settings: Settings, rounds: int) -> float:
    """Return the median seconds of a number of runs, after one warm-up run."""
    run()
    return statistics.median(seconds(run, settings) for _ in range(rounds))


def rounds_of(runs: Mapping[str, Callable[[], object]], settings: Settings, findings: Findings) -> dict[str, Rounds]:
    """Return the seconds of each run in every round, after a warm-up round; each round runs every run once.

    An error becomes a finding, and the run that raised it is dropped.
    """
    taken = {name: Rounds() for name in runs}
    rounds = settings.effort.rounds + 1
    for ran in range(rounds):
        for name, run in runs.items():
            if len(taken[name]) == ran:
                with findings.attempt(name):
                    taken[name].append(seconds(run, settings))
    return {name: Rounds(each[1:]) for name, each in taken.items() if len(each) == rounds}


def encoder_flops(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Return the floating-point operations of the matrix products for sequences of these lengths.

    A linear layer takes 2 operations for each weight and token. One head's attention takes 2·n·(head_dim + value_dim)
    operations for each of n tokens. Embeddings, norms, activations, softmax and pooling are not counted.
    """
    inner = config.heads * config.value_dim
    linear = config.d_model * (2 * config.heads * config.head_dim + inner)
    linear += inner * config.d_model if config.output_projection else 0
    linear += 2 * config.width * config.d_ff
    attention = config.heads * (config.head_dim + config.value_dim)
    return sum(2 * n * config.layers * (linear + n * attention) for n in lengths)


def matrix_rate(settings: Settings, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product in PyTorch, the most that a device can do."""
    side = settings.effort.matrix
    left, right = (torch.randn(side, side, device=settings.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(left, right, out=out)

    return _PRODUCTS * 2 * side**3 / median_seconds(multiply, settings, 5)


def kernels_ms(run: Callable[[], None]) -> float:
    """Return the milliseconds that the GPU's kernels take in one run, without copies to and from the GPU.

    PyTorch's profiler uses CUPTI, which sees all GPU work of this process, including ONNX Runtime's. Kernels run one
    after another on one stream, so their times can be added.

    Raises:
        RuntimeError: the profiler saw no kernels.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED_RUNS):
            run()
    kernels: list[float] = [
        event.time_range.elapsed_us()
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]
    if not kernels:
        raise RuntimeError("PyTorch's profiler saw no kernels of ONNX Runtime: check that CUPTI is installed")
    return sum(kernels) / _PROFILED_RUNS / 1e3
