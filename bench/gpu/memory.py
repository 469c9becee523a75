"""Whether memory grows when batches have random shapes."""

import gc
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from bench.findings import Findings
from bench.gpu.models import minilm_bundle
from bench.gpu.settings import Settings
from bench.processes import memory_mib
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.warmup import Lengths, time_batch
from headwaiter_server.scheduling.calibration import measure_cost, warm_up
from headwaiter_server.scheduling.cost import BatchLimits

_ALLOWED_GROWTH = 1.05


def memory(settings: Settings, findings: Findings) -> None:
    """Start like a server, run random shapes, and compare the memory in use before and after."""
    before = _used_mib(settings)
    model = open_model(minilm_bundle(settings), settings.provider, settings.fastest, None)
    limits = warm_up(model, measure_cost(model).limits)
    # On a GPU, subtract the memory that was in use before the model was opened.
    other = before if settings.provider == "cuda" else 0
    warm = _used_mib(settings) - other
    manifest = model.bundle.manifest
    for lengths in random_shapes(manifest, limits, settings.effort.shapes):
        time_batch(model.graph, manifest, lengths)
    after = _used_mib(settings) - other
    kind = "GPU memory" if settings.provider == "cuda" else "resident memory"
    at_end = f"{kind} after {settings.effort.shapes:,} random shapes"
    findings.record(f"{kind} after warm-up, MiB", warm)
    findings.record(f"{at_end}, MiB", after)
    findings.require(f"{at_end} / after warm-up", after / warm, "≤", _ALLOWED_GROWTH)


def random_shapes(manifest: Manifest, limits: BatchLimits, count: int) -> Iterator[Lengths]:
    """Yield random batches within a server's limits; lengths and tokens are log-uniform."""
    random = np.random.default_rng(0)

    def draw(least: int, most: int, size: int = 1) -> NDArray[np.int64]:
        return np.exp(random.uniform(np.log(least), np.log(most + 1), size)).astype(np.int64)

    for _ in range(count):
        (tokens,), (longest,) = draw(1, limits.tokens), draw(manifest.min_tokens, manifest.max_tokens)
        most = min(limits.cells // longest**2, limits.padded_tokens // longest)
        most_others = min(most - 1, (tokens - longest) // manifest.min_tokens)
        others = draw(manifest.min_tokens, longest, max(0, most_others))
        fitting = np.searchsorted(others.cumsum(), tokens - longest, side="right")
        yield (int(longest), *others[:fitting].tolist())


def _used_mib(settings: Settings) -> float:
    """Return the GPU memory in use, or this process's memory if there is no GPU."""
    gc.collect()  # Garbage of other parts must not disappear between two measurements.
    if settings.provider == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20
    return memory_mib("VmRSS")
