"""A model opens on the requested provider with outputs within tolerance of PyTorch's, or it is refused."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_SEQUENCE,
    PRECISION_FP16,
    PRECISION_FP32,
    PRECISION_INT8,
)
from headwaiter_proto.manifest_pb2 import LOWERING_PADDED, Padding
from headwaiter_server.runtime import model as model_module
from headwaiter_server.runtime.attention_routes import Route
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, Bundle
from headwaiter_server.runtime.errors import (
    BundleRefused,
    GraphMissing,
    LongestSequenceRefused,
    ModelRefused,
    ProviderUnavailable,
    ToleranceExceeded,
)
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.graph_file import structure_of
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.numeric_tolerances import Difference
from tests.support.server.bundles import copy, read_manifest, sign, write_manifest

GRAPH = "packed-cpu.fp32.onnx"


@pytest.fixture
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])


def _refusal(
    folder: Path,
    kind: type[ModelRefused],
    provider: Literal["auto", "cuda", "cpu"] = "cpu",
    precision: Literal["auto", "fp32", "fp16", "int8"] = "auto",
) -> str:
    with pytest.raises(kind) as error:
        open_model(folder, provider, precision, 1)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("runs_graphs", "runs_transformers")
@pytest.mark.parametrize("fixture", ["text_bundle", "feature_bundle"])
def test_a_model_opens_on_the_cpu_and_measures_its_difference_from_pytorch(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    model = open_model(folder, "cpu", "auto", 1)
    assert (model.provider, model.precision, model.graph_file) == ("cpu", PRECISION_FP32, GRAPH)
    assert model.fallback_reason == ""
    assert model.self_check_sequences == len(Bundle.open(folder).golden().sequences) >= 16
    assert 0 < model.self_check.pooled_max_abs <= 1e-5
    assert 0 < model.self_check.hidden_max_abs <= 1e-4
    assert model.self_check.min_cosine == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("output", ["pooled", "hidden"])
def test_changed_golden_outputs_are_damage_and_with_a_new_checksum_exceed_the_tolerance(
    text_bundle: Path, tmp_path: Path, output: str
) -> None:
    folder = copy(text_bundle, tmp_path)
    with np.load(folder / GOLDEN) as stored:
        arrays = dict(stored)
    arrays[output][-1, 0] += 1e-3
    np.savez(folder / GOLDEN, **arrays)
    damage = _refusal(folder, BundleRefused)
    assert str(folder / GOLDEN) in damage
    assert "damaged" in damage

    sign(folder, [GOLDEN])
    message = _refusal(folder, ToleranceExceeded)
    for fact in (str(folder / GRAPH), "cpu", "golden inputs", output, {"pooled": "1e-05", "hidden": "0.0001"}[output]):
        assert fact in message


@pytest.mark.usefixtures("_without_cuda")
def test_auto_falls_back_to_the_cpu_and_logs_the_reason(text_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = open_model(text_bundle, "auto", "auto", 1)
    assert (model.provider, model.precision) == ("cpu", PRECISION_FP32)
    assert "no CUDA provider" in model.fallback_reason
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("headwaiter_server.runtime.model", logging.WARNING)
    assert model.fallback_reason in record.getMessage()


def test_auto_runs_a_bundle_without_a_cuda_graph_on_the_cpu(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    cpu_graphs = [graph for graph in manifest.graphs if graph.file == GRAPH]
    del manifest.graphs[:]
    manifest.graphs.extend(cpu_graphs)
    write_manifest(folder, manifest)
    model = open_model(folder, "auto", "auto", 1)
    assert model.provider == "cpu"
    assert "--graphs packed-cuda" in model.fallback_reason


@pytest.mark.usefixtures("_without_cuda")
@pytest.mark.parametrize("provider", ["cpu", "auto"])
def test_a_precision_without_a_graph_is_refused_with_the_precisions_of_the_bundle(
    text_bundle: Path, provider: Literal["auto", "cpu"]
) -> None:
    message = _refusal(text_bundle, GraphMissing, provider, "fp16")
    for fact in (str(text_bundle), "no fp16 graph for cpu", "fp32, int8"):
        assert fact in message


def test_int8_runs_on_the_cpu_within_tolerance_and_without_a_fallback(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = open_model(text_bundle, "auto", "int8", 1)
    assert (model.provider, model.precision, model.graph_file) == ("cpu", PRECISION_INT8, "packed-cpu.int8.onnx")
    assert (model.fallback_reason, caplog.messages) == ("", [])
    assert 0.99 <= model.self_check.min_cosine < model.self_check.mean_cosine < 1


@pytest.mark.usefixtures("_without_cuda")
@pytest.mark.parametrize(("precision", "kind"), [("fp16", GraphMissing), ("auto", ProviderUnavailable)])
def test_a_model_beyond_float16_is_refused_in_fp16_with_the_reason_and_opens_in_fp32_by_default(
    precision: Literal["auto", "fp16"],
    kind: type[ModelRefused],
    text_bundle: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["file"] != "packed-cuda.fp16.onnx"]
    manifest["largestMagnitude"] = {"name": "layers.0.feed_forward.up", "value": 7e4}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    # On `auto`, only the missing provider keeps the model from opening.
    message = _refusal(folder, kind, "cuda", precision)
    explained = message if precision == "fp16" else caplog.text
    for fact in ("no fp16 graph", "layers.0.feed_forward.up", "70000", "65504"):
        assert fact in explained


PACKED = ("packed-cpu.fp32.onnx", "packed-cuda.fp32.onnx", "packed-cpu.int8.onnx")
MODULE, FLOAT16_FILE, INT8_FILE = ("padded.fp32.onnx", "padded.fp16.onnx"), ("padded.fp16.onnx",), ("padded.int8.onnx",)


@pytest.fixture
def _opens_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each graph open on each provider, and keep sequences apart."""
    monkeypatch.setattr(model_module, "keeps_apart", lambda *_: True)
    graph = SimpleNamespace(route=Route.GATHERED, attends_in_blocks=True)
    monkeypatch.setattr(model_module, "_open_checked", lambda *_: (graph, "", Difference(0, 0, 0, 0, 1, 1)))
    monkeypatch.setattr(Bundle, "results_digest", lambda *_: "")


def _with_graphs(bundle: Path, destination: Path, files: tuple[str, ...]) -> Path:
    """Copy a bundle and list graphs of these names, which have the content of others."""
    folder = copy(bundle, destination)
    manifest = read_manifest(folder)
    listed = {graph.file: graph for graph in manifest.graphs}
    del manifest.graphs[:]
    for file in files:
        kind, precision, _ = file.split(".")
        provider = "cpu" if precision == "int8" else "cuda"
        graph = listed[file if kind != "padded" else f"packed-{provider}.{precision}.onnx"]
        if kind == "padded":
            graph.lowering = LOWERING_PADDED
            manifest.padding.CopyFrom(Padding(isolation=ISOLATION_MIXED, token_values=1))
        manifest.graphs.append(graph)
    write_manifest(folder, manifest)
    return folder


@pytest.mark.usefixtures("_opens_everything")
@pytest.mark.parametrize(
    ("files", "provider", "chosen"),
    [
        (PACKED, "auto", ("cuda", PRECISION_FP32)),
        (PACKED, "cpu", ("cpu", PRECISION_FP32)),
        (MODULE, "auto", ("cuda", PRECISION_FP16)),
        (MODULE[:1], "auto", ("cuda", PRECISION_FP32)),
        (MODULE, "cpu", ("cpu", PRECISION_FP32)),
        (FLOAT16_FILE, "auto", ("cuda", PRECISION_FP16)),
        (FLOAT16_FILE, "cpu", ("cpu", PRECISION_FP16)),
        (INT8_FILE, "auto", ("cpu", PRECISION_INT8)),
        (INT8_FILE, "cpu", ("cpu", PRECISION_INT8)),
    ],
)
def test_without_a_precision_the_best_graph_of_the_bundle_runs(
    files: tuple[str, ...],
    provider: Literal["auto", "cpu"],
    chosen: tuple[str, int],
    text_bundle: Path,
    tmp_path: Path,
) -> None:
    model = open_model(_with_graphs(text_bundle, tmp_path, files), provider, "auto", 1)
    assert (model.provider, model.precision) == chosen
    # No GPU runs a file in int8.
    assert not model.fallback_reason


@pytest.mark.parametrize(
    ("files", "provider", "precision"),
    [
        (PACKED, "cuda", "fp16"),
        (PACKED[2:], "cpu", "auto"),  # int8 must be asked for
        (MODULE, "cpu", "fp16"),
        (FLOAT16_FILE, "cuda", "fp32"),
    ],
)
def test_a_precision_that_the_bundle_lacks_for_a_provider_is_refused(
    files: tuple[str, ...],
    provider: Literal["cuda", "cpu"],
    precision: Literal["auto", "fp32", "fp16"],
    text_bundle: Path,
    tmp_path: Path,
) -> None:
    _refusal(_with_graphs(text_bundle, tmp_path, files), GraphMissing, provider, precision)


@pytest.mark.usefixtures("_opens_everything")
@pytest.mark.parametrize(("provider", "isolation"), [("cuda", ISOLATION_ONE_SEQUENCE), ("cpu", ISOLATION_MIXED)])
def test_sequences_run_alone_on_cuda_if_they_change_each_other_there(
    provider: Literal["cuda", "cpu"],
    isolation: int,
    text_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(model_module, "keeps_apart", lambda *_: False)
    folder = _with_graphs(text_bundle, tmp_path, MODULE)
    assert open_model(folder, provider, "auto", 1).bundle.manifest.padding.isolation == isolation
    assert (str(folder) in caplog.text) == (provider == "cuda")


def test_a_file_in_int8_is_refused_on_cuda_with_a_remedy_that_works(text_bundle: Path, tmp_path: Path) -> None:
    message = _refusal(_with_graphs(text_bundle, tmp_path, INT8_FILE), GraphMissing, "cuda")
    assert "--provider" in message
    assert "ONNX file in fp32 or fp16" in message
    assert "--graphs" not in message


@pytest.mark.parametrize(
    ("heads", "bias_heads", "route", "most"),
    [
        (4, 1, Route.MEMORY_EFFICIENT, 45_056),  # a causal model: the mask of one head serves all
        (32, 32, Route.MEMORY_EFFICIENT, 7680),  # ALiBi
        (12, 0, Route.GATHERED, 13_312),  # DeBERTa
    ],
)
def test_a_sequence_too_long_for_the_arrays_of_cuda_is_refused_with_a_length_that_is_not(
    heads: int,
    bias_heads: int,
    route: Route,
    most: int,
    text_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.heads, manifest.bias_heads, manifest.max_tokens = heads, bias_heads, 65_536
    write_manifest(folder, manifest)
    graph = SimpleNamespace(route=route, attends_in_blocks=True)
    monkeypatch.setattr(EncoderGraph, "open", lambda *_, **__: graph)
    monkeypatch.setattr(model_module, "check_golden", lambda *_, **__: Difference(0, 0, 0, 0, 1, 1))
    # The files of the bundle belong to a model of fewer heads and tokens.
    golden = Bundle.open(text_bundle).golden()
    monkeypatch.setattr(Bundle, "golden", lambda _: golden)
    monkeypatch.setattr(model_module, "check_graph", lambda *_: None)
    message = _refusal(folder, LongestSequenceRefused, "cuda")
    for fact in (manifest.name, "65,536", f"{bias_heads or heads} ×", f"--max-sequence-tokens {most} or less"):
        assert fact in message
    assert open_model(folder, "cuda", "auto", 1, max_tokens=most).bundle.manifest.max_tokens == most
    assert (bias_heads or heads) * most**2 < 2**31


@pytest.mark.gpu
def test_cuda_runs_fp16_within_tolerance(text_bundle: Path) -> None:
    model = open_model(text_bundle, "auto", "auto", None)
    assert (model.provider, model.precision, model.fallback_reason) == ("cuda", PRECISION_FP16, "")
    assert model.self_check.min_cosine >= 0.9999


def test_the_structure_of_a_graph_is_its_nodes_and_the_shapes_of_its_weights() -> None:
    def structure(value: float, width: int = 3, operator: str = "Add") -> str:
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
        bias = helper.make_tensor("bias", TensorProto.FLOAT, [width], [value] * width)
        node = helper.make_node(operator, ["x", "bias"], ["y"])
        return structure_of(helper.make_model(helper.make_graph([node], "g", [x], [y], [bias])).SerializeToString())

    assert structure(1.0) == structure(2.0)
    assert len({structure(1.0), structure(1.0, width=1), structure(1.0, operator="Mul")}) == 3
