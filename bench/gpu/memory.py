"""Checks whether memory grows when batches have random shapes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from bench.findings import Findings
from bench.gpu.models import minilm_bundle
from bench.gpu.settings import FASTEST, Settings
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models.calibration import measure_cost, warm_up
from headwaiter_server.runtime import graph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import BatchLimits

_ALLOWED_GROWTH = 1.05
# The served arena doubles when it grows. The other one allocates what a batch asks for; it gets a tenth of the shapes.
_SERVED, _OTHER = "kNextPowerOfTwo", "kSameAsRequested"

Lengths = NDArray[np.int32]


def memory(settings: Settings, findings: Findings) -> None:
    """Start like a server, run random shapes, and compare the memory in use before and after."""
    shapes = settings.effort.shapes
    warm, after = _warm_and_after(_SERVED, shapes, settings, findings)
    at_end = f"GPU memory after {shapes:,} random shapes"
    findings.record("GPU memory after warm-up, MiB", warm)
    findings.record(f"{at_end}, MiB", after)
    findings.require(f"{at_end} / after warm-up", after / warm, "≤", _ALLOWED_GROWTH)
    fewer = max(1, shapes // 10)
    with findings.attempt(_OTHER):
        warm, after = _warm_and_after(_OTHER, fewer, settings, findings)
        findings.record(f"{_OTHER}: GPU memory after warm-up, MiB", warm)
        findings.record(f"{_OTHER}: GPU memory after {fewer:,} random shapes, MiB", after)


def _warm_and_after(strategy: str, shapes: int, settings: Settings, findings: Findings) -> tuple[float, float]:
    """Return the MiB of a model after its warm-up, and after batches of random shapes."""
    before = _used_mib(settings)
    with arena_strategy(strategy):
        model = open_model(minilm_bundle(settings), "cuda", FASTEST, None)
    limits = warm_up(model, measure_cost(model).limits)
    warm = _used_mib(settings) - before
    manifest = model.bundle.manifest
    for lengths in random_shapes(manifest, limits, shapes):
        findings.require_time()
        model.graph.run(batch_of(lengths, manifest), hidden=False)
    return warm, _used_mib(settings) - before


@contextmanager
def arena_strategy(strategy: str) -> Iterator[None]:
    """Let sessions on CUDA that open in the block grow their memory by a strategy, and otherwise be as served."""
    served = graph._provider_options  # noqa: SLF001 - the server has no setting for the strategy

    def options(*arguments: object) -> tuple[str, dict[str, str]]:
        name, chosen = served(*arguments)  # type: ignore[arg-type]
        return name, {**chosen, "arena_extend_strategy": strategy}

    with patch.object(graph, "_provider_options", options):
        yield


def batch_of(lengths: Lengths, manifest: Manifest) -> PackedBatch:
    """Return a batch of made-up token ids; unlike `pack`, it does not copy sequence by sequence."""
    ends = np.cumsum(lengths, dtype=np.int64)
    rows = np.arange(ends[-1], dtype=np.int64) % manifest.vocabulary_size
    return PackedBatch(rows, lengths, ends - lengths, int(lengths.max()))


def random_shapes(manifest: Manifest, limits: BatchLimits, count: int) -> Iterator[Lengths]:
    """Yield random batches within a server's limits; lengths and tokens are log-uniform."""
    random = np.random.default_rng(0)

    def draw(least: int, most: int, size: int = 1) -> NDArray[np.int64]:
        return np.exp(random.uniform(np.log(least), np.log(most + 1), size)).astype(np.int64)

    for _ in range(count):
        (tokens,), (longest,) = draw(1, limits.tokens), draw(manifest.min_tokens, manifest.max_tokens)
        padded_length = limits.padded_length(longest)
        most = min(limits.cells // padded_length**2, limits.padded_tokens // padded_length)
        most_others = min(most - 1, (tokens - longest) // manifest.min_tokens)
        others = draw(manifest.min_tokens, longest, max(0, most_others))
        fitting = np.searchsorted(others.cumsum(), tokens - longest, side="right")
        yield np.concatenate([[longest], others[:fitting]]).astype(np.int32)


def _used_mib(settings: Settings) -> float:
    gc.collect()  # Garbage of other parts must not disappear between two measurements.
    return settings.gpu.used_mib()
