"""The ways to a bundle that the pages show make bundles."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headwaiter_export import cli
from headwaiter_export.checkpoints.weights import random_encoder
from headwaiter_export.cli import main
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_server.runtime.bundle import Bundle
from tests.support.documents import (
    BUNDLE,
    ENCODER_CONFIG,
    EXPORT_CHECKPOINT,
    EXPORT_MODULE,
    EXPORT_ONNX_FILE,
    blocks,
    commands,
)

pytestmark = pytest.mark.usefixtures("packed_cpu_alone")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers")
def test_the_export_commands_of_the_page_make_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exports = [arguments for _, *arguments in commands(ENCODER_CONFIG, tmp_path)]
    config = EncoderConfig.from_dict(json.loads(Path("config.json").read_text()))
    save_file(random_encoder(config, seed=0).state_dict(), "weights.safetensors")
    assert [arguments[0] for arguments in exports] == ["module", "preset"]
    for arguments in exports:
        assert main(arguments) == 0, arguments
        Bundle.open(Path("my-bundle"))
        shutil.rmtree("my-bundle")


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("page", "number"),
    [(EXPORT_CHECKPOINT, 9), (EXPORT_MODULE, 1), (EXPORT_ONNX_FILE, 1), (BUNDLE, 1)],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_export_has_the_flags_of_the_commands_of_a_page(
    page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_export", lambda _: 0)
    exports = [arguments for program, *arguments in commands(page, tmp_path) if program == "headwaiter-export"]
    assert len(exports) == number
    for arguments in exports:
        assert main(arguments) == 0  # Wrong usage raises SystemExit.


def test_the_configuration_with_a_decoder_of_the_page_is_one() -> None:
    (block,) = (block for block in blocks(ENCODER_CONFIG, "json") if '"decoder"' in block)
    assert EncoderConfig.from_dict(json.loads(block)).takes_target


@pytest.mark.usefixtures("runs_graphs")
def test_the_pytorch_example_of_the_page_makes_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks(EXPORT_MODULE, "python") if "from_transformer_encoder" in block)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    exec(compile(block, EXPORT_MODULE.name, "exec"), {"module": module})
    assert Bundle.open(tmp_path / "my-bundle").manifest.width == 8
