"""bf16 is refused with a reason where the machine or the bundle cannot serve it."""

import importlib.util
from pathlib import Path

import pytest

from headwaiter_proto.encoder_pb2 import PRECISION_BF16
from headwaiter_server.runtime import openvino_session
from headwaiter_server.runtime.errors import BundleRefused, GraphMissing, ProviderUnavailable
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.openvino_session import require_bf16
from tests.support.server.bundles import copy, read_manifest, write_manifest


def _installed(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    find_spec = importlib.util.find_spec
    found = find_spec("json") if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "openvino" else find_spec(name))


@pytest.fixture
def looping_bundle(text_bundle: Path, tmp_path: Path) -> Path:
    """The bundle "tiny-text" with its graph in fp32, which has a loop, as its graph in bf16."""
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    (fp32,) = (graph for graph in manifest.graphs if graph.file == "packed-cpu.fp32.onnx")
    manifest.graphs.add().CopyFrom(fp32)
    manifest.graphs[-1].precision = PRECISION_BF16
    write_manifest(folder, manifest)
    return folder


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_one_of_two_instruction_sets_and_the_package_suffice(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, installed=True)
    require_bf16({"avx2", flag})


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, installed=False)
    with pytest.raises(ProviderUnavailable) as refused:
        require_bf16({"amx_bf16"})
    for fact in ("openvino", "headwaiter[bf16]"):
        assert fact in str(refused.value)


def test_a_model_is_refused_on_a_processor_without_bf16_and_does_not_fall_back(
    looping_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_session, "processor_flags", lambda: frozenset({"avx2"}))
    with pytest.raises(ProviderUnavailable, match="AVX512_BF16"):
        open_model(looping_bundle, "auto", "bf16", 1)


def test_a_bundle_without_a_graph_in_bf16_is_refused(text_bundle: Path) -> None:
    with pytest.raises(GraphMissing, match=r"no bf16 graph for cpu \(available: fp32, int8\): .*--precision fp32 bf16"):
        open_model(text_bundle, "auto", "bf16", 1)


def test_a_graph_that_openvino_cannot_read_is_refused(looping_bundle: Path) -> None:
    pytest.importorskip("openvino")
    try:
        require_bf16()
    except ProviderUnavailable as reason:
        pytest.skip(str(reason))
    with pytest.raises(BundleRefused) as refused:
        open_model(looping_bundle, "cpu", "bf16", 1)
    for fact in ("OpenVINO", "packed-cpu.fp32.onnx", "--precision"):
        assert fact in str(refused.value)
