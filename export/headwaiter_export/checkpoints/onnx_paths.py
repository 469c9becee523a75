"""Where an ONNX file is, and which files belong to it."""

import mmap
from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointError, is_present
from headwaiter_export.checkpoints.needed_files import WEIGHTS
from headwaiter_proto.model_source import is_onnx

_FOLDER = "onnx"


def find_onnx(path: Path) -> Path:
    """Return an ONNX file, or that of a folder, which may be in its folder `onnx`.

    Raises:
        CheckpointError: there is no such file, or there are several.
    """
    if path.is_file():
        return path
    files = _files(path)
    usual = [each for each in files if each.name == "model.onnx"]
    if len(files) == 1 or usual:
        return (usual or files)[0]
    if files:
        names = ", ".join(str(each.relative_to(path)) for each in files)
        raise CheckpointError(f"{path} has several ONNX files, {names}: name one of them")
    raise CheckpointError(f"{path} is neither an ONNX file nor a folder that has one: correct the path")


def settings_folder(file: Path) -> Path:
    """Return the folder with the settings of an ONNX file: its own folder, or the one above its folder `onnx`."""
    beside = file.resolve().parent
    has_settings = any(is_present(beside / name) for name in ("config.json", "modules.json"))
    return beside.parent if beside.name == _FOLDER and not has_settings else beside


def is_onnx_model(path: Path) -> bool:
    """Return whether a path is an ONNX file, or a folder that has one and no weights of PyTorch."""
    return is_onnx(str(path)) or (bool(_files(path)) and not any(is_present(path / name) for name in WEIGHTS))


def files_of(file: Path) -> list[Path]:
    """Return an ONNX file, and the files beside it that it names, such as those of its weights."""
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return [file]
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            beside = (each for each in sorted(file.parent.iterdir()) if each.is_file() and each != file)
            return [file, *(each for each in beside if content.find(each.name.encode()) >= 0)]


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.onnx"), *folder.glob(f"{_FOLDER}/*.onnx")])
