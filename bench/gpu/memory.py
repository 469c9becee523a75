"""Checks whether memory grows when batches have random shapes."""

import gc
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.findings import Findings
from bench.gpu.decisions import MEMORY
from bench.gpu.models import minilm_bundle
from bench.gpu.settings import FASTEST, Settings
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models.calibration import calibrate
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import BatchLimits

Lengths = NDArray[np.int32]


def memory(settings: Settings, findings: Findings) -> None:
    """Start like a server, CUDA graphs included, run random shapes, and compare the memory before and after."""
    before = _used_mib(settings)
    model = open_model(minilm_bundle(settings), "cuda", FASTEST, None)
    limits = calibrate(model, 0).limits
    findings.record("CUDA graphs", len(model.graph.cuda_graphs or ()))
    warm, manifest, shapes = _used_mib(settings) - before, model.bundle.manifest, settings.effort.shapes
    for lengths in random_shapes(manifest, limits, shapes):
        findings.require_time()
        model.graph.run(batch_of(lengths, manifest), hidden=False)
    after = _used_mib(settings) - before
    findings.record("GPU memory after warm-up, MiB", warm)
    findings.record(f"GPU memory after {shapes:,} random shapes, MiB", after)
    findings.require(MEMORY, after / warm, "≤", 1.05)


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
