"""The upper limits of one core: the matrix products alone, and the planner and the graph without a server."""

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bench.loads.traces import Ids
from bench.processes import own_cpu_s
from bench.studies.in_process import Planner, run_batches
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.packing import pack

_REPEATS = 5


def floor_s(sequences: Sequence[Ids], manifest: Manifest, d_ff: int, batch_tokens: int) -> float:
    """Return the CPU seconds of the matrix products that every implementation needs.

    These are the six linear layers of each encoder layer, over all tokens in packed batches, and the attention products
    [H, n, d/H]·[H, d/H, n] and [H, n, n]·[H, n, d/H] of each sequence. They run in ONNX Runtime's MatMul, which was
    faster on the CPU than PyTorch's. Softmax, norms, activations and gathers are left out.
    """
    tokens = sum(map(len, sequences))
    width = hidden_width(manifest)
    linear = _linear_products(width, d_ff, manifest.layers)
    rows = np.random.default_rng(0).standard_normal((batch_tokens, width), np.float32)
    seconds = _fastest_s(linear, {"x": rows}) * tokens / batch_tokens
    attention = _attention_products()
    for length, times in Counter(map(len, sequences)).items():
        head = np.ones((manifest.heads, length, width // manifest.heads), np.float32)
        feeds = {"q": head, "k": head.transpose(0, 2, 1).copy(), "v": head}
        seconds += _fastest_s(attention, feeds) * times * manifest.layers
    return seconds


def in_process_s(sequences: Sequence[Ids], window: int, graph: EncoderGraph, planner: Planner) -> float:
    """Return the seconds to plan and run a trace of which `window` sequences wait at any time."""
    started_s = time.perf_counter()
    run_batches(graph, planner.batches(sequences, window))
    return time.perf_counter() - started_s


def alone_s(sequences: Sequence[Ids], path: Path) -> list[float]:
    """Return the seconds of a `session.run` of each sequence alone, with inputs prepared beforehand."""
    session = _one_thread_session(path)
    names = [node.name for node in session.get_inputs()]
    feeds = [pack([ids]).feeds(names) for ids in sequences]
    seconds = []
    for inputs in feeds:
        started_s = time.perf_counter()
        session.run(["pooled"], inputs)
        seconds.append(time.perf_counter() - started_s)
    return seconds


def _one_thread_session(model: Path | bytes) -> ort.InferenceSession:
    """Open a graph on the CPU with one thread, and with the memory patterns that ONNX Runtime uses by default."""
    options = session_options(threads=1)
    options.enable_mem_pattern = True
    return open_session(model, "cpu", options)


def _fastest_s(session: ort.InferenceSession, feeds: dict[str, NDArray[np.float32]]) -> float:
    return min(own_cpu_s(partial(session.run, None, feeds)) for _ in range(_REPEATS))


def _linear_products(d_model: int, d_ff: int, layers: int) -> ort.InferenceSession:
    """Return the linear layers of a model, each with its own weights, so that no weights stay in the cache."""
    random = np.random.default_rng(0)
    nodes, weights, outputs = [], [], []
    rows = "x"
    for layer in range(layers):
        for name, source, target, widths in (
            ("q", rows, f"q{layer}", (d_model, d_model)),
            ("k", rows, f"k{layer}", (d_model, d_model)),
            ("v", rows, f"v{layer}", (d_model, d_model)),
            ("out", f"v{layer}", f"out{layer}", (d_model, d_model)),
            ("up", f"out{layer}", f"up{layer}", (d_model, d_ff)),
            ("down", f"up{layer}", f"down{layer}", (d_ff, d_model)),
        ):
            weight = random.standard_normal(widths, np.float32) / np.float32(np.sqrt(widths[0]))
            weights.append(numpy_helper.from_array(weight, f"{name}{layer}.weight"))
            nodes.append(helper.make_node("MatMul", [source, weights[-1].name], [target]))
        rows = f"down{layer}"
        outputs += [f"q{layer}", f"k{layer}"]
    return _products(nodes, {"x": [None, d_model]}, [*outputs, rows], weights)


def _attention_products() -> ort.InferenceSession:
    nodes = [helper.make_node("MatMul", ["q", "k"], ["scores"]), helper.make_node("MatMul", ["scores", "v"], ["out"])]
    return _products(nodes, {name: [None, None, None] for name in "qkv"}, ["out"], [])


def _products(
    nodes: list[NodeProto], inputs: dict[str, list[int | None]], outputs: list[str], weights: list[TensorProto]
) -> ort.InferenceSession:
    sources = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    targets = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "products", sources, targets, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return _one_thread_session(model.SerializeToString())
