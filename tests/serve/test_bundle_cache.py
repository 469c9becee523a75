"""A bundle in the cache belongs to a checkpoint's content, the graphs, code and libraries; starts take turns."""

import importlib
import os
import shutil
import threading
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from onnx import GraphProto, ModelProto, TensorProto

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_serve import bundle_cache
from headwaiter_serve.bundle_cache import cached_bundle
from headwaiter_server.settings.flags import read_settings
from tests.support.checkpoints import write_json

CPU = ("--provider", "cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headwaiter" / "bundles"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "here" / "model"
    folder.parent.mkdir()
    write_json(folder / "config.json", {"layers": 1})
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def bundle(folder: Path, *flags: str) -> Path:
    with cached_bundle(str(folder), read_settings([str(folder), *flags], {})) as (path, _):
        return path


def test_a_copy_and_what_the_export_does_not_read_change_nothing(checkpoint: Path, cache: Path, tmp_path: Path) -> None:
    first = bundle(checkpoint)
    assert first.parent == cache
    os.utime(checkpoint / "config.json", (0, 0))
    (checkpoint / "README.md").write_text("words")
    (checkpoint / "modeling.py").write_text("code")
    (checkpoint / "pytorch_model.bin").write_bytes(b"the same weights")
    assert bundle(checkpoint) == first
    copy = tmp_path / "there" / "model"
    copy.parent.mkdir()
    assert bundle(checkpoint.rename(copy)) == first


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_that_the_export_reads_changes_the_bundle(file: str, checkpoint: Path) -> None:
    first, times = bundle(checkpoint), (checkpoint / "config.json").stat()
    (checkpoint / file).write_bytes(b"changed")
    os.utime(checkpoint / file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert bundle(checkpoint) != first


def test_name_and_graphs_change_the_bundle(checkpoint: Path) -> None:
    first = bundle(checkpoint)
    bundles = {first, bundle(checkpoint, *CPU), bundle(checkpoint, "--precision", "int8")}
    renamed = checkpoint.rename(checkpoint.with_name("other"))
    bundles.add(bundle(renamed))
    renamed.rename(checkpoint)
    with cached_bundle(str(checkpoint), read_settings([str(checkpoint)], {}), ["--pooling", "cls"]) as (path, export):
        assert export[-2:] == ["--pooling", "cls"]
        assert path not in bundles
    # Flags of the server alone change nothing.
    assert bundle(checkpoint, "--token-budget", "64") == first
    assert len(bundles) == 4


def test_code_data_and_libraries_change_the_bundle(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundle(checkpoint)
    # A copy of the packages that decide the content of a bundle changes nothing; one byte more in a file of them does.
    packages = []
    for name in ("headwaiter_export", "headwaiter_proto", "headwaiter_server.runtime"):
        (original,) = importlib.import_module(name).__path__
        packages.append(SimpleNamespace(__path__=[str(shutil.copytree(original, tmp_path / "code" / name))]))
    monkeypatch.setattr(bundle_cache, "_CODE", packages)
    assert bundle(checkpoint) == first
    for file in (
        "headwaiter_export/graphs/int8.py",
        "headwaiter_export/bundle/sentences-1.txt",
        "headwaiter_proto/rules/pooling.py",
        "headwaiter_server.runtime/packing.py",
    ):
        path = tmp_path / "code" / file
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        assert bundle(checkpoint) != first
        path.write_bytes(content)
    for library in ("torch", "transformers", "tokenizers", "onnxruntime"):
        with monkeypatch.context() as patched:
            patched.setattr(metadata, "version", {library: "0.0.1"}.get)
            assert bundle(checkpoint) != first


def test_a_damaged_bundle_is_exported_again(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle(checkpoint)
    path.mkdir()
    (path / "manifest.json").write_text("{")
    assert bundle(checkpoint) == path
    assert not path.exists()
    assert "manifest.json" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_names_its_variable(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(checkpoint / "config.json"))
    with pytest.raises(BundleError, match="XDG_CACHE_HOME"):
        bundle(checkpoint)


@pytest.mark.parametrize(
    ("flags", "graphs"),
    [
        ((), "--graphs packed-cpu padded attend packed-cuda --precision fp32 fp16"),
        (CPU, "--graphs packed-cpu padded attend --precision fp32"),
        ((*CPU, "--precision", "int8"), "--graphs packed-cpu padded attend --precision fp32 int8"),
        ((*CPU, "--precision", "bf16"), "--graphs packed-cpu padded attend --precision fp32 bf16"),
    ],
)
def test_the_export_writes_the_graphs_that_the_server_may_choose(
    flags: tuple[str, ...], graphs: str, checkpoint: Path
) -> None:
    with cached_bundle(str(checkpoint), read_settings([str(checkpoint), *flags], {})) as (path, export):
        assert export == ["checkpoint", str(checkpoint), "-o", str(path), *graphs.split()]


def test_an_onnx_file_is_exported_with_what_belongs_to_it(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    file, weights = checkpoint / "onnx" / "model.onnx", checkpoint / "onnx" / "parts" / "model.weights"
    weights.parent.mkdir(parents=True)
    tensor = TensorProto(data_location=TensorProto.EXTERNAL, dims=[1], data_type=TensorProto.FLOAT)
    tensor.external_data.add(key="location", value="parts/model.weights")
    file.write_bytes(ModelProto(graph=GraphProto(initializer=[tensor])).SerializeToString())
    weights.write_bytes(b"weights")
    for named in (checkpoint, file):
        with cached_bundle(str(named), read_settings([str(named), *CPU], {})) as (path, export):
            assert export == ["onnx", str(named), "-o", str(path)]
    bundles = {bundle(file)}
    (file.parent / "model_O3.onnx").write_bytes(b"another graph")
    assert bundle(file) in bundles
    for changed, added in (
        (weights, b" "),
        (file, ModelProto(producer_name="mine").SerializeToString()),
        (checkpoint / "config.json", b" "),
    ):
        changed.write_bytes(changed.read_bytes() + added)
        bundles.add(bundle(file))
    assert len(bundles) == 4
    # PyTorch's weights come first, unless the file is named.
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    with cached_bundle(str(checkpoint), read_settings([str(checkpoint)], {})) as (_, export):
        assert export[0] == "checkpoint"


def test_a_start_waits_for_another_one_of_the_same_model(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, waits = read_settings([str(checkpoint)], {}), threading.Event()

    def start() -> None:
        with cached_bundle(str(checkpoint), settings):
            waits.set()

    with cached_bundle(str(checkpoint), settings):
        other = threading.Thread(target=start)
        other.start()
        assert not waits.wait(0.2)
    assert waits.wait(10)
    other.join()
    assert str(checkpoint) in capsys.readouterr().err


def test_a_checkpoint_that_names_a_file_outside_itself_is_refused(checkpoint: Path) -> None:
    write_json(checkpoint / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": "../.."}])
    with pytest.raises(CheckpointError, match=r"\.\./\.\."):
        bundle(checkpoint)
