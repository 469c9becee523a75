"""A graph takes packed batches whatever its attention layout, and runs on the requested provider or not at all."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from headwaiter_server.runtime import cuda_graphs
from headwaiter_server.runtime import graph as graph_module
from headwaiter_server.runtime.attention_routes import PackedAttention, Route
from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.packing import pack

BATCH = pack([np.array([[1.0]], np.float32), np.array([[2.0], [3.0]], np.float32)])


def _save(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[str | int]], outputs: list[str]) -> Path:
    types = {"features": TensorProto.FLOAT, "attention_mask": TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, types[name], shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture
def unpooled(tmp_path: Path) -> Path:
    """A packed graph whose hidden rows are minus its features."""
    nodes = [helper.make_node("Neg", ["features"], ["hidden"])]
    return _save(tmp_path / "unpooled.onnx", nodes, {"features": ["tokens", 1]}, ["hidden"])


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """A padded graph whose pooled output is the features times the mask, [B, N]."""
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Squeeze", ["features"], ["flat"]),
        helper.make_node("Mul", ["flat", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked"], ["pooled"], keepdims=0, noop_with_empty_axes=1),
        helper.make_node("Neg", ["features"], ["hidden"]),
    ]
    inputs: dict[str, list[str | int]] = {"features": ["b", "n", 1], "attention_mask": ["b", "n"]}
    return _save(tmp_path / "padded.onnx", nodes, inputs, ["pooled", "hidden"])


@pytest.mark.usefixtures("runs_graphs")
def test_a_padded_graph_gets_padded_cells_and_its_padding_is_dropped(padded: Path) -> None:
    graph = EncoderGraph.open(padded, "cpu")
    outputs = graph.run(BATCH, hidden=True)
    assert graph.hidden_is_optional
    assert outputs.pooled is not None
    assert outputs.pooled.tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert outputs.hidden is not None
    assert outputs.hidden.tolist() == [[-1.0], [-2.0], [-3.0]]
    assert graph.run(BATCH, hidden=False).hidden is None


@pytest.mark.usefixtures("runs_graphs")
def test_shape_buckets_change_no_output(unpooled: Path, padded: Path) -> None:
    rng = np.random.default_rng(0)
    for path in (unpooled, padded):
        session = open_session(path, "cpu", session_options(threads=1))
        exact, rounded = EncoderGraph(session), EncoderGraph(session, gpu=0)
        # The first shape repeats after other shapes. Outputs must stay valid while later batches run.
        shapes = ((1, 2), (1, 2), (40, 3, 17, 1, 2, 2, 5, 9, 4), (5,), (1, 2))
        batches = [pack([rng.standard_normal((n, 1), np.float32) for n in lengths]) for lengths in shapes]
        runs = [(batch, hidden) for batch in batches for hidden in (True, False)]
        outputs = [rounded.run(batch, hidden=hidden) for batch, hidden in runs]
        for (batch, hidden), actual in zip(runs, outputs, strict=True):
            expected = exact.run(batch, hidden=hidden)
            np.testing.assert_array_equal(actual.pooled, expected.pooled)
            np.testing.assert_array_equal(actual.hidden, expected.hidden)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("gpu", [None, 0])
def test_a_prepared_batch_has_all_inputs_and_the_same_outputs(
    gpu: int | None, unpooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = EncoderGraph(open_session(unpooled, "cpu", session_options(threads=1)), gpu)
    batch = pack([np.full((n, 1), n, np.float32) for n in (40, 3, 17, 1, 2, 2, 5, 9, 4)])
    expected = graph.run(batch, hidden=True).hidden
    prepared = graph.prepare(batch)
    assert prepared.inputs is not None
    assert prepared.inputs.keys() == {"features"}
    # A run of a prepared batch computes no inputs.
    monkeypatch.setattr(graph, "prepare", None)
    np.testing.assert_array_equal(graph.run(prepared, hidden=True).hidden, expected)


def test_cuda_runs_without_tf32_with_all_fused_kernels_and_with_the_memory_limit(
    unpooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {}

    def open_on_gpu(*_: object, providers: list[tuple[str, dict[str, str]]], enable_fallback: int) -> SimpleNamespace:
        assert not enable_fallback
        opened.update(providers)
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])

    _silent_fallback(monkeypatch)
    monkeypatch.setattr(ort, "InferenceSession", open_on_gpu)
    for max_gpu_bytes, limit in ((0, {}), (1 << 33, {"gpu_mem_limit": "8589934592"})):
        open_session(unpooled, "cuda", session_options(threads=None), device=3, max_gpu_bytes=max_gpu_bytes)
        options = {"device_id": "3", "use_tf32": "0", "sdpa_kernel": "19", **limit}
        assert opened == {"CUDAExecutionProvider": options | {"arena_extend_strategy": "kNextPowerOfTwo"}}


@pytest.mark.parametrize(
    ("inputs", "attention", "capability", "route"),
    [
        (["cu_seqlens"], PackedAttention(False, 64, 64), None, Route.MEMORY_EFFICIENT),
        (["cu_seqlens"], PackedAttention(False, 20, 20), None, Route.UNFUSED),
        (["cu_seqlens"], None, None, Route.UNFUSED),
        (["lengths"], PackedAttention(False, 64, 64), None, Route.GATHERED),
        # `cu_seqlens` belongs to the operator of packed attention, and `scatter` to layers that gather their attention.
        (["cu_seqlens", "scatter"], PackedAttention(True, 64, 64), None, Route.GATHERED),
        (["cu_seqlens"], PackedAttention(True, 64, 64), None, Route.MEMORY_EFFICIENT),
        (["cu_seqlens"], PackedAttention(True, 64, 64), (7, 5), Route.MEMORY_EFFICIENT),
        (["cu_seqlens"], PackedAttention(True, 64, 64), (8, 0), Route.FLASH),
    ],
)
def test_the_route_follows_the_inputs_the_attention_and_the_compute_capability(
    inputs: list[str],
    attention: PackedAttention | None,
    capability: tuple[int, int] | None,
    route: Route,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_module, "compute_capability", {3: capability}.__getitem__)
    nodes = [SimpleNamespace(name=name) for name in inputs]
    session: Any = SimpleNamespace(get_inputs=lambda: nodes, get_outputs=list)
    graph = EncoderGraph(session, 3, attention)
    assert graph.route is route
    assert graph.variable_length == (route in (Route.MEMORY_EFFICIENT, Route.FLASH))


@pytest.mark.parametrize(
    ("message", "opened"),
    [("This session cannot use the graph capture feature", [True, False]), ("out of memory", [True])],
)
def test_a_graph_that_cuda_graphs_refuse_opens_without_them(
    monkeypatch: pytest.MonkeyPatch, message: str, opened: list[bool]
) -> None:
    asked: list[bool] = []

    def open_on_gpu(*_: object, cuda_graphs: bool = False) -> Any:
        asked.append(cuda_graphs)
        if cuda_graphs:
            raise RuntimeError(message)
        return SimpleNamespace(get_inputs=list, get_outputs=list)

    monkeypatch.setattr(graph_module, "open_session", open_on_gpu)
    if len(opened) == 1:
        with pytest.raises(RuntimeError, match=message):
            EncoderGraph.open(Path("graph.onnx"), "cuda")
    else:
        graph = EncoderGraph.open(Path("graph.onnx"), "cuda")
        assert graph.cuda_graphs is None
        assert graph.capture(BATCH, lambda *_: None) is None
    assert asked == opened


def test_no_session_opens_on_cuda_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, bool] = {}
    monkeypatch.setattr(graph_module, "require_cuda", lambda *_: None)
    monkeypatch.setattr(
        graph_module, "_open_on_provider", lambda *_: held.setdefault("opening", cuda_graphs.CAPTURE_LOCK.locked())
    )
    open_session(b"graph", "cuda", session_options(1))
    session = SimpleNamespace(get_inputs=list, get_outputs=lambda: [SimpleNamespace(name="pooled")])
    graph = EncoderGraph(cast(Any, session), 0, has_cuda_graphs=True)
    monkeypatch.setattr(graph, "turn", lambda _: held.setdefault("capturing", cuda_graphs.CAPTURE_LOCK.locked()))
    graph.capture(BATCH, lambda *_: None)
    assert held == {"opening": True, "capturing": True}
    assert not cuda_graphs.CAPTURE_LOCK.locked()


def test_cudas_libraries_are_loaded_before_the_first_session_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without this call, ONNX Runtime does not find libraries that pip has installed.
    calls: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr("onnxruntime.preload_dlls", lambda: calls.append("libraries"))
    monkeypatch.setattr(graph_module, "_open_on_provider", lambda *_: calls.append("session"))
    open_session(b"graph", "cuda", session_options(1))
    assert calls == ["libraries", "session", "session"]


def test_a_variable_that_would_send_short_batches_to_the_unfused_kernel_is_ignored(
    text_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32", "100")
    with pytest.raises(ProviderUnavailable):
        EncoderGraph.open(text_bundle / "packed-cuda.fp32.onnx", "cuda")
    assert "ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32" not in os.environ


def _cuda_is_not_built(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])


def _no_driver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    def load(name: str) -> None:
        raise OSError(name)

    patch.setattr(ctypes, "CDLL", load)


def _silent_fallback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    patch.setattr(ctypes, "CDLL", lambda name: None)
    patch.setattr(ort, "preload_dlls", lambda: None)
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    patch.setattr(ort, "InferenceSession", lambda *_, **__: session)


@pytest.mark.parametrize(
    ("pretend", "facts"),
    [
        (_cuda_is_not_built, ["no CUDA provider", "pip install 'headwaiter[cuda]'"]),
        (_no_driver, ["no NVIDIA driver", "--provider cpu"]),
        (_silent_fallback, ["CUDA provider", "NVIDIA libraries", "pip install 'headwaiter[cuda]'"]),
    ],
)
def test_the_error_for_cuda_that_does_not_work_says_in_one_line_what_to_install(
    unpooled: Path, monkeypatch: pytest.MonkeyPatch, pretend: Callable[[pytest.MonkeyPatch], None], facts: list[str]
) -> None:
    pretend(monkeypatch)
    with pytest.raises(ProviderUnavailable) as error:
        EncoderGraph.open(unpooled, "cuda")
    message = str(error.value)
    assert [fact for fact in facts if fact not in message] == []
    assert "\n" not in message
