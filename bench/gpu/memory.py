"""Whether memory stays where it is when no two batches have the same shape."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.findings import Findings
from bench.gpu.models import minilm_bundle
from bench.gpu.setting import Setting
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.warmup import Lengths, time_batch
from headwaiter_server.scheduling.calibration import measure_cost, warm_up
from headwaiter_server.scheduling.cost import BatchLimits

_ALLOWED_GROWTH = 1.05


def memory(setting: Setting, findings: Findings) -> None:
    """Start as a server does, run random shapes, and compare the memory that is held."""
    before = _held_bytes(setting)
    model = open_model(minilm_bundle(setting), setting.provider, setting.fastest, None)
    limits = warm_up(model, measure_cost(model).limits)
    # On a card, what this process holds for other things is not counted.
    least = before if setting.provider == "cuda" else 0
    warm = _held_bytes(setting) - least
    manifest = model.bundle.manifest
    for lengths in random_shapes(manifest, limits, setting.effort.shapes):
        time_batch(model.graph, manifest, lengths)
    after = _held_bytes(setting) - least
    held = "memory of the card" if setting.provider == "cuda" else "resident memory"
    findings.see(f"{held} after warm-up, MiB", warm / 2**20)
    findings.see(f"{held} after {setting.effort.shapes:,} random shapes, MiB", after / 2**20)
    what = f"{held} after {setting.effort.shapes:,} random shapes by after warm-up"
    findings.hold(what, after / warm, "≤", _ALLOWED_GROWTH)


def random_shapes(manifest: Manifest, limits: BatchLimits, count: int) -> Iterator[Lengths]:
    """Yield so many batches as a server would run them: lengths and tokens drawn log-uniformly, within the limits."""
    random = np.random.default_rng(0)

    def draw(least: int, most: int, size: int = 1) -> NDArray[np.int64]:
        return np.exp(random.uniform(np.log(least), np.log(most + 1), size)).astype(np.int64)

    for _ in range(count):
        (tokens,), (longest,) = draw(1, limits.tokens), draw(manifest.min_tokens, manifest.max_tokens)
        beside = min(
            limits.cells // longest**2 - 1,
            limits.padded_tokens // longest - 1,
            (tokens - longest) // manifest.min_tokens,
        )
        others = draw(manifest.min_tokens, longest, max(0, beside))
        fitting = np.searchsorted(others.cumsum(), tokens - longest, side="right")
        yield (int(longest), *others[:fitting].tolist())


def _held_bytes(setting: Setting) -> int:
    """Return the memory in use on the card, or this process's own where there is none."""
    gc.collect()  # What other parts have left behind must not go while we look.
    if setting.provider == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024
