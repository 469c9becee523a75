"""Checks whether memory grows when batches have random shapes."""

import gc
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.findings import Findings
from bench.gpu.models import minilm_bundle
from bench.gpu.settings import FASTEST, Settings
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models.calibration import measure_cost, warm_up
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.warmup import Lengths, time_batch
from headwaiter_server.scheduling.cost import BatchLimits

_ALLOWED_GROWTH = 1.05


def memory(settings: Settings, findings: Findings) -> None:
    """Start like a server, run random shapes, and compare the memory in use before and after."""
    before = _used_mib(settings)
    model = open_model(minilm_bundle(settings), "cuda", FASTEST, None)
    limits = warm_up(model, measure_cost(model).limits)
    warm = _used_mib(settings) - before
    manifest = model.bundle.manifest
    for lengths in random_shapes(manifest, limits, settings.effort.shapes):
        findings.require_time()
        time_batch(model.graph, manifest, lengths)
    after = _used_mib(settings) - before
    at_end = f"GPU memory after {settings.effort.shapes:,} random shapes"
    findings.record("GPU memory after warm-up, MiB", warm)
    findings.record(f"{at_end}, MiB", after)
    findings.require(f"{at_end} / after warm-up", after / warm, "≤", _ALLOWED_GROWTH)


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
        yield (int(longest), *others[:fitting].tolist())


def _used_mib(settings: Settings) -> float:
    gc.collect()  # Garbage of other parts must not disappear between two measurements.
    return settings.gpu.used_mib()
