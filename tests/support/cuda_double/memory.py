"""Measure the device memory of models as a server uses it, as a process of its own: print it as JSON.

python -m tests.support.cuda_double.memory NAME=FOLDER...
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models import calibration
from headwaiter_server.models.calibration import batch_limits, capture_cuda_graphs, warm_up
from headwaiter_server.runtime import cuda_graphs
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import _packed_attention
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import BatchLimits
from tests.support.cuda_double.controls import Controls
from tests.support.cuda_double.forms import PRECISIONS, graph_path, read_manifest

# A token budget at which the tests are quick.
_TOKENS = 4096
# Random batches on each device.
_BATCHES = (1000, 100)
_CYCLES = 20


def _open(folder: Path, manifest: Manifest, device: int) -> EncoderGraph:
    attention = _packed_attention(manifest, PRECISIONS["fp16"])
    return EncoderGraph.open(graph_path(folder, "fp16"), "cuda", 1, device, attention=attention)


def _measure(
    folder: Path,
    controls: Controls,
    device: int = 0,
    *,
    batches: int = 0,
    tokens: int = _TOKENS,
    padded_length: int = 0,
    graphs: bool = False,
) -> dict[str, int]:
    """Warm a model up, run random batches or the most padded batch of a length, and delete the session."""
    manifest = read_manifest(folder)
    manifest.max_tokens = min(manifest.max_tokens, _TOKENS)
    graph = _open(folder, manifest, device)
    model: Any = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest), graph=graph, provider="cuda", precision=PRECISION_FP32
    )
    if graphs:
        # Kernels on the double compute nothing.
        with (
            patch.object(calibration, "violation", lambda *_: None),
            patch.object(cuda_graphs, "same_bits", lambda *values: True),
        ):
            capture_cuda_graphs(model)
    limits = warm_up(model, batch_limits(model, tokens))
    warm = controls.bytes_in_use(device)
    for lengths in _random_lengths(manifest, limits, batches):
        graph.run(_batch(lengths), hidden=False)
    if padded_length:
        graph.run(_batch(_most_padded(limits, padded_length)), hidden=False)
    used = controls.bytes_in_use(device)
    captured = len(graph.cuda_graphs or ())
    del model, graph
    return {"warm": warm, "used": used, "deleted": controls.bytes_in_use(device), "graphs": captured}


def _random_lengths(manifest: Manifest, limits: BatchLimits, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the lengths of random batches within a server's limits; lengths and tokens are log-uniform."""
    random = np.random.default_rng(0)

    def draw(most: int, size: int = 1) -> NDArray[np.int64]:
        return np.exp(random.uniform(0, np.log(most + 1), size)).astype(np.int64)

    for _ in range(count):
        (tokens,), (longest,) = draw(limits.tokens), draw(manifest.max_tokens)
        others = draw(longest, max(0, min(_most_sequences(limits, longest) - 1, tokens - longest)))
        fitting = np.searchsorted(others.cumsum(), tokens - longest, side="right")
        yield np.concatenate([[longest], others[:fitting]])


def _most_padded(limits: BatchLimits, longest: int) -> Sequence[int]:
    """Return the lengths of one long sequence and as many sequences of one token as the limits allow."""
    return (longest, *(1,) * min(_most_sequences(limits, longest) - 1, limits.tokens - longest))


def _most_sequences(limits: BatchLimits, longest: int) -> int:
    padded_length = limits.padded_length(longest)
    return min(limits.cells // padded_length**2, limits.padded_tokens // padded_length, limits.sequences)


def _batch(lengths: Sequence[int] | NDArray[np.int64]) -> PackedBatch:
    """Return a batch of the token id 1; `pack` would take longer than the batch."""
    counts = np.asarray(lengths, np.int32)
    ends = np.cumsum(counts, dtype=np.int64)
    return PackedBatch(np.ones(ends[-1], np.int64), counts, ends - counts, int(counts.max()))


def _cycle(folder: Path, controls: Controls) -> list[int]:
    """Open and delete a session many times; return the memory in use after each deletion."""
    manifest, in_use = read_manifest(folder), []
    for _ in range(_CYCLES):
        graph = _open(folder, manifest, 0)
        graph.run(_batch([1, 2]), hidden=False)
        del graph
        in_use.append(controls.bytes_in_use())
    return in_use


def main() -> None:
    """Measure all models on two devices."""
    controls = Controls(Path(os.environ["CUDA_DOUBLE_CONTROLS"]))
    controls.set_logging(False)
    models = {name: Path(folder) for name, folder in (argument.split("=", 1) for argument in sys.argv[1:])}
    found: dict[str, Any] = {
        f"{name} {device}": _measure(folder, controls, device, batches=batches)
        for name, folder in models.items()
        for device, batches in enumerate(_BATCHES)
    }
    found["few tokens"] = _measure(models["deberta"], controls, tokens=1024, padded_length=192)
    found["long sequences"] = _measure(models["causal"], controls, padded_length=1536)
    found["cycles"] = _cycle(models["bert"], controls)
    found["graphs"] = _measure(models["bert"], controls, batches=1000, graphs=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
