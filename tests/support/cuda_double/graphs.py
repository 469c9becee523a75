"""Capture and replay CUDA graphs on the double, as a process of its own: print what happened as JSON.

python -m tests.support.cuda_double.graphs BATCHES

Kernels on the double compute nothing, but copies are real, also those that a CUDA graph repeats. A graph of copies
therefore computes: its outputs show the inputs that it read.
"""

import ctypes
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models import calibration
from headwaiter_server.runtime import cuda_graphs
from headwaiter_server.runtime.batch_timing import Lengths, time_batch
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import GRAPH_TOKENS
from tests.support.cuda_double.controls import Controls
from tests.support.cuda_double.log import write_mark

MAX_TOKENS = 64
_MANIFEST = Manifest(name="copies", vocabulary_size=1000, max_tokens=MAX_TOKENS)
_SWAPS = 5


def _write_copies(path: Path) -> Path:
    """Write a graph that copies inputs: the grid of rows to `pooled`, ids to `token_logits`, positions to `hidden`."""
    nodes = [("gather", "pooled"), ("input_ids", "token_logits"), ("positions", "hidden")]
    shapes = {"gather": ["b", "n"], "input_ids": ["t"], "positions": ["t"]}
    graph = helper.make_graph(
        [helper.make_node("Identity", [source], [target]) for source, target in nodes],
        "copies",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.INT64, None) for _, name in nodes],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def _open(path: Path, device: int = 0) -> EncoderGraph:
    return EncoderGraph.open(path, "cuda", 1, device)


def _capture(graph: EncoderGraph) -> None:
    with patch.object(calibration, "time_batch", _time_batch):
        calibration.capture_cuda_graphs(_model(graph))


def _time_batch(graph: EncoderGraph, manifest: Manifest, lengths: Lengths) -> float:
    """Run a batch as the server does; each further CUDA graph counts as faster, however busy this machine is."""
    time_batch(graph, manifest, lengths)
    return 1 / (1 + len(graph.cuda_graphs or ()))


def _model(graph: EncoderGraph) -> Any:
    return SimpleNamespace(bundle=SimpleNamespace(manifest=_MANIFEST), graph=graph, precision=PRECISION_FP32)


def _random_batches(count: int) -> Iterator[PackedBatch]:
    """Yield batches of random ids, of which some are too large for a graph; tokens and lengths are log-uniform."""
    random = np.random.default_rng(0)
    for _ in range(count):
        most_tokens, longest = np.exp(random.uniform(0, np.log([4 * GRAPH_TOKENS[-1], MAX_TOKENS]))).astype(int)
        lengths = random.integers(1, longest + 1, max(1, 2 * most_tokens // (longest + 1)))
        yield pack([random.integers(1, 1000, length) for length in lengths])


def _wrong(graph: EncoderGraph, batches: Iterator[PackedBatch]) -> list[int]:
    """Run batches by their graphs; return the number of replays, and the numbers of wrong rows."""
    replays = wrong_ids = wrong_grids = 0
    for batch in batches:
        prepared = graph.prepare(batch)
        replays += isinstance(prepared.inputs, cuda_graphs.Upload)
        outputs = graph.run(prepared, hidden=False)
        assert outputs.logits is not None
        assert outputs.pooled is not None
        wrong_ids += np.concatenate(outputs.logits).tolist() != batch.rows.tolist()
        wrong_grids += not _is_grid(outputs.pooled, batch)
    return [replays, wrong_ids, wrong_grids]


def _is_grid(grid: NDArray[Any], batch: PackedBatch) -> bool:
    columns = np.minimum(np.arange(grid.shape[1]), batch.lengths[:, None] - 1)
    return bool((grid == batch.starts[:, None] + columns).all())


def _warnings(run: Any) -> list[str]:
    """Return the warnings that a function logs."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    run()
    logging.getLogger().removeHandler(handler)
    return lines


def _fail_to_capture(path: Path) -> tuple[list[str], list[int]]:
    """Capture until CUDA refuses a capture, because a thread that ignores no captures allocates memory.

    Return the warnings, the number of graphs, and what `_wrong` finds then.
    """
    runtime, done = ctypes.CDLL("libcudart.so.13"), threading.Event()

    def allocate() -> None:
        address = ctypes.c_void_p()
        while not done.is_set():
            runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1))
            runtime.cudaFree(address)

    warnings: list[str] = []
    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        while not warnings:
            graph = _open(path)
            warnings = _warnings(partial(_capture, graph))
    finally:
        done.set()
        thread.join()
    return warnings, [len(graph.cuda_graphs or ()), *_wrong(graph, _random_batches(100))]


def _runs_during_a_capture(path: Path) -> dict[str, list[Any]]:
    """Run a session's first batch in a new thread while this thread captures; return errors of the run, and the end's.

    The first batch allocates memory.
    """
    runtime, batch, found = ctypes.CDLL("libcudart.so.13"), _ids([MAX_TOKENS] * 4096), {}
    for way in ("as served", "without ignoring captures"):
        graph, stream, captured = _open(path), ctypes.c_void_p(), ctypes.c_void_p()
        prepared = graph.prepare(batch)
        run = partial(graph.run, prepared, hidden=True)
        if way != "as served":
            run = partial(graph._session.run, None, prepared.inputs, cuda_graphs.run_options())
        runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
        runtime.cudaStreamBeginCapture(stream, 0)
        with ThreadPoolExecutor(1) as thread:
            failed = thread.submit(run).exception() is not None
        found[way] = [failed, runtime.cudaStreamEndCapture(stream, ctypes.byref(captured))]
    return found


def _ids(lengths: Sequence[int]) -> PackedBatch:
    return pack([np.arange(length, dtype=np.int64) for length in lengths])


def main() -> None:
    """Capture, replay and fail."""
    log, folder = Path(os.environ["CUDA_DOUBLE_LOG"]), Path(os.environ["CUDA_DOUBLE_LOG"]).parent
    controls = Controls(Path(os.environ["CUDA_DOUBLE_CONTROLS"]))
    path = _write_copies(folder / "copies.onnx")
    found: dict[str, Any] = {}

    graph = _open(path)
    graph.run(_ids([MAX_TOKENS] * 4096), hidden=True)  # Reserves memory.
    found["warnings"] = _warnings(partial(_capture, graph))
    assert graph.cuda_graphs is not None
    found["graphs"] = len(graph.cuda_graphs)

    batch = graph.prepare(_ids([5, 20]))
    write_mark(log, "replay")
    graph.run(batch, hidden=False)
    write_mark(log, "replayed")
    hidden = graph.run(batch, hidden=True).hidden
    write_mark(log, "with hidden rows")
    found["hidden"] = hidden is not None and hidden.tolist() == [*range(5), *range(20)]

    controls.set_logging(False)
    in_use = controls.bytes_in_use()
    found["wrong"] = _wrong(graph, _random_batches(int(sys.argv[1])))
    found["more memory"] = controls.bytes_in_use() - in_use

    other = _open(path)
    _capture(other)
    in_turn = [_wrong(each, iter([batch])) for batch in _random_batches(200) for each in (graph, other)]
    found["two models in turn"] = np.sum(in_turn, axis=0).tolist()
    del other
    found["after the other is closed"] = _wrong(graph, _random_batches(100))

    with patch.object(cuda_graphs, "run_options", lambda number=-1, own=cuda_graphs.run_options: own(min(number, 1))):
        same_number = _open(path)
        found["one number for all"] = _warnings(partial(_capture, same_number))
        found["runs without graphs"] = [len(same_number.cuda_graphs or ()), *_wrong(same_number, _random_batches(20))]

    del same_number
    found["failed capture"], found["after it"] = _fail_to_capture(path)

    found["first batches during a capture"] = _runs_during_a_capture(path)

    swaps = []
    for _ in range(_SWAPS):
        new = _open(path)
        _capture(new)
        graph = new
        del new
        swaps.append(controls.bytes_in_use())
    found["memory after swaps"] = swaps
    del graph, batch
    found["memory after all sessions"] = controls.bytes_in_use()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
