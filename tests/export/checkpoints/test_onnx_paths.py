"""Which ONNX file a path means, which settings belong to it, and when PyTorch's weights come before it."""

from pathlib import Path

import pytest

from headwaiter_export.checkpoints.onnx_paths import find_onnx, is_onnx_model, settings_folder, usual_name
from tests.support.checkpoints import write_json, write_modules_json


def write(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"content")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A folder in the cache of Hugging Face, whose files are links."""
    folder = tmp_path / "snapshots" / "some-model"
    for file, blob in (("onnx/model.onnx", "0a1b"), ("config.json", "2c3d")):
        write(tmp_path / "blobs" / blob)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).symlink_to(tmp_path / "blobs" / blob)
    return folder


def test_links_of_a_cache_are_not_followed(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = snapshot / "onnx" / "model.onnx"
    assert find_onnx(snapshot) == file
    assert (settings_folder(file), usual_name(file), usual_name(snapshot)) == (snapshot, "some-model", "some-model")
    monkeypatch.chdir(file.parent)
    for relative in ("model.onnx", "../onnx/model.onnx"):
        assert (settings_folder(Path(relative)), usual_name(Path(relative))) == (snapshot, "some-model")


def test_settings_beside_a_file_come_before_those_above_it(snapshot: Path) -> None:
    write(snapshot / "onnx" / "modules.json")
    assert settings_folder(snapshot / "onnx" / "model.onnx") == snapshot / "onnx"
    assert usual_name(snapshot / "onnx" / "model_O3.onnx") == "model_O3"


@pytest.mark.parametrize(
    "weights",
    ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json"],
)
@pytest.mark.parametrize("folder", ["", "0_Transformer"])
def test_weights_of_pytorch_come_first_wherever_they_are(weights: str, folder: str, snapshot: Path) -> None:
    write_modules_json(snapshot, "models.Transformer", "models.Pooling", "models.Dense")
    if folder:
        modules = (snapshot / "modules.json").read_text().replace('"path": ""', f'"path": "{folder}"')
        (snapshot / "modules.json").write_text(modules)
    write(snapshot / "2_Dense" / "model.safetensors")
    # The ONNX file has no Dense, whose weights count only beside those of the transformer.
    assert is_onnx_model(snapshot)
    write(snapshot / folder / weights)
    assert not is_onnx_model(snapshot)
    assert is_onnx_model(snapshot / "onnx" / "model.onnx")


def test_a_folder_without_an_onnx_file_is_a_checkpoint(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    assert not is_onnx_model(tmp_path)
