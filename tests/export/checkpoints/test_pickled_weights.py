"""Weights that `torch.save` wrote are read as tensors only: nothing in the file runs."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.checkpoints import save_bert, write_json
from tests.support.export.helpers import assert_checkpoint_refused


def to_pickle(folder: Path, shards: int) -> None:
    """Replace the file of weights by files that `torch.save` wrote."""
    path = folder / "model.safetensors"
    tensors = list(safetensors.torch.load_file(path).items())
    path.unlink()
    if shards == 1:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
        return
    files = {name: f"pytorch_model-{index % shards}.bin" for index, (name, _) in enumerate(tensors)}
    for file in set(files.values()):
        torch.save({name: tensor for name, tensor in tensors if files[name] == file}, folder / file)
    write_json(folder / "pytorch_model.bin.index.json", {"weight_map": files})


@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_weights_equal_safetensors(shards: int, tmp_path: Path) -> None:
    save_bert(tmp_path)
    expected = read_checkpoint(tmp_path).encoder.state_dict()
    to_pickle(tmp_path, shards)
    found = read_checkpoint(tmp_path).encoder.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


class _RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("code-has-run"),)


@pytest.mark.parametrize("content", [{"embeddings": _RunsCode()}, {"weights": {"a": torch.ones(1)}}, [torch.ones(1)]])
def test_a_pickle_of_anything_but_tensors_is_refused_and_runs_no_code(
    content: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    assert_checkpoint_refused(folder, "pytorch_model.bin", "safetensors")
    assert not (folder / "code-has-run").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle"])
def test_a_damaged_pickle_is_refused(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    assert_checkpoint_refused(folder, "pytorch_model.bin", "safetensors")


def test_a_checkpoint_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert_checkpoint_refused(folder, str(folder), "model.safetensors", "pytorch_model.bin")
