"""Run encoders on every device of the double, as a process of its own: print what was found as JSON.

python -m tests.support.cuda_double.forms DEVICES NAME=FOLDER... (each with a manifest and CUDA graphs)
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from google.protobuf import json_format

from bench.gpu.cuda import Gpu
from bench.gpu.routes import printed_kernels, read_routes
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.batch_timing import Lengths, made_up_batch
from headwaiter_server.runtime.bundle import MANIFEST
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.memory import cell_values
from headwaiter_server.runtime.model import _packed_attention
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.shape_buckets import MAX_BATCH_SEQUENCES, most_padded_tokens
from tests.support.cuda_double.log import write_mark

PRECISIONS = {"fp16": PRECISION_FP16, "fp32": PRECISION_FP32}
# On later devices, attention has the same kernels as on the second.
_DEVICES_WITH_LIMITS = 2


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a model, or of a bundle."""
    return json_format.Parse((folder / MANIFEST).read_text(encoding="utf-8"), Manifest(), ignore_unknown_fields=True)


def graph_path(folder: Path, precision: str) -> Path:
    """Return the path of a CUDA graph, padded if there is no packed one; the file may be missing."""
    packed = folder / f"packed-cuda.{precision}.onnx"
    return packed if packed.exists() else folder / f"padded.{precision}.onnx"


def _lengths(manifest: Manifest) -> Mapping[str, Lengths]:
    """Return the lengths of the batches to run; the last two are the largest that a server accepts."""
    # A server refuses a model if an array of its longest sequence would have more numbers.
    longest = min(manifest.max_tokens, most_padded_tokens(manifest.bias_heads or cell_values(manifest)))
    if manifest.fixed_length:
        return {"one": (longest,), "several": (longest,) * 3}
    least = max(1, manifest.min_tokens)
    several = tuple(max(least, n) for n in (13, 1, 21, 9, 2, 3, 5, 8, 1))
    return {"one": (7,), "several": several, "longest": (longest,), "most sequences": (least,) * MAX_BATCH_SEQUENCES}


def _run_on_devices(name: str, folder: Path, precision: str, devices: int, log: Path) -> dict[str, Any]:
    """Run a graph on all devices; return what was found, by graph and device."""
    manifest = read_manifest(folder)
    batches: dict[str, PackedBatch] = {}
    found: dict[str, Any] = {}
    for device in range(devices):
        options = session_options(1)
        options.enable_profiling = True
        options.profile_file_prefix = str(log.with_name("profile"))
        with printed_kernels() as printed:
            session = open_session(graph_path(folder, precision), "cuda", options, device)
            graph = EncoderGraph(session, device, _packed_attention(manifest, PRECISIONS[precision]))
            # All devices get the same inputs.
            batches = batches or {
                batch: graph.prepare(made_up_batch(manifest, lengths)) for batch, lengths in _lengths(manifest).items()
            }
            chosen = dict(list(batches.items())[: None if device < _DEVICES_WITH_LIMITS else 2])
            label = f"{name} {precision} {device}"
            found[label] = {**_run(label, graph, session, chosen, log), "printed": read_routes(printed())}
    return found


def _run(
    label: str, graph: EncoderGraph, session: ort.InferenceSession, batches: Mapping[str, PackedBatch], log: Path
) -> dict[str, Any]:
    """Run batches, with a mark before and after each; on the first device, also a batch whose inputs are there."""
    graph.run(batches["one"], hidden=True)  # The first batch also allocates memory.
    for batch, packed in batches.items():
        write_mark(log, f"{label} {batch}")
        graph.run(packed, hidden=True)
        write_mark(log, f"{label} {batch} end")
    outputs = [each.name for each in session.get_outputs()]
    # The check of GPUs copies inputs to the first device.
    if label.endswith(" 0") and batches["one"].inputs:
        bound = Gpu().without_copies(session, batches["one"].inputs, outputs)
        write_mark(log, f"{label} bound")
        bound()
        write_mark(log, f"{label} bound end")
    profile = Path(session.end_profiling())
    events = [event["args"] for event in json.loads(profile.read_text()) if event["cat"] == "Node"]
    profile.unlink()
    return {
        "route": graph.route,
        "inputs": {
            batch: [array.nbytes for array in packed.inputs.values()]
            for batch, packed in batches.items()
            if packed.inputs
        },
        "outputs": len(outputs),
        "nodes": sorted(
            {
                (event["provider"], event["op_name"], int(event["output_size"]))
                for event in events
                if event.get("provider") not in (None, "CUDAExecutionProvider")
            }
        ),
        "operators": sorted({event["op_name"] for event in events if "provider" in event}),
    }


def main() -> None:
    """Run all graphs of all models on all devices."""
    log, devices = Path(os.environ["CUDA_DOUBLE_LOG"]), int(sys.argv[1])
    models = [(name, Path(folder)) for name, folder in (argument.split("=", 1) for argument in sys.argv[2:])]
    found: dict[str, Any] = {}
    for name, folder in models:
        for precision in PRECISIONS:
            if graph_path(folder, precision).exists():
                found |= _run_on_devices(name, folder, precision, devices, log)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
