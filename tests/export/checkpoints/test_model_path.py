"""What is named instead of a model is told from a model, and the sentence says what to give."""

from pathlib import Path

import pytest

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.model_path import check_model_path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for file in (
        *("mine.py", "notes.txt", "alone/model.safetensors", "whole/model.safetensors", "whole/config.json"),
        *("sentences/modules.json", "bundle/manifest.json", "above/below/config.json", "graph/onnx/model.onnx"),
    ):
        Path(file).parent.mkdir(exist_ok=True, parents=True)
        Path(file).touch()
    Path("empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("text", ["whole", "./sentences", "bundle", "owner/name@main", "model.onnx"])
def test_a_model_passes(text: str) -> None:
    check_model_path(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("https://huggingface.co/owner/name", "on the hub, owner/name"),
        ("https://huggingface.co/owner/name/tree/v1.0/", "owner/name@v1.0"),
        ("empty", "has no files"),
        ("above", "above/below"),
        ("graph", "headwaiter-export onnx graph"),
        ("whole/model.safetensors", "{folder}/whole"),
        ("alone/model.safetensors", "headwaiter-export module CONFIG.json alone/model.safetensors"),
        ("mine.py", "headwaiter-export module mine.py:FUNCTION"),
        ("./mine.py:make", "headwaiter-export module ./mine.py:make"),
        ("notes.txt", "OWNER/NAME"),
        ("./nothing", "OWNER/NAME"),
    ],
)
def test_the_sentence_names_what_was_given_and_the_remedy(text: str, remedy: str, folder: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        check_model_path(text)
    assert str(raised.value).startswith(f"{text} ")
    assert remedy.format(folder=folder) in str(raised.value)
