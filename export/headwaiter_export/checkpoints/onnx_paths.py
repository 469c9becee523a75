"""Where an ONNX file is, and which files belong to it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwaiter_export.checkpoints.json_files import CheckpointError, is_present, path_inside
from headwaiter_export.checkpoints.needed_files import has_weights
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
    beside = _folder(file)
    has_settings = any(is_present(beside / name) for name in ("config.json", "modules.json"))
    return beside.parent if beside.name == _FOLDER and not has_settings else beside


def usual_name(path: Path) -> str:
    """Return the name of a model: that of the folder, or of an ONNX file with another name than usual."""
    if not is_onnx(str(path)):
        return path.resolve().name
    folder = _folder(path)
    return path.stem if path.stem != "model" else folder.parent.name if folder.name == _FOLDER else folder.name


def is_onnx_model(path: Path) -> bool:
    """Return whether a path is an ONNX file, or a folder that has one and lacks weights of PyTorch."""
    return is_onnx(str(path)) or (bool(_files(path)) and not has_weights(path))


def files_of(file: Path) -> list[Path]:
    """Return an ONNX file, and the other files that have its weights; the file alone if it is damaged.

    Raises:
        CheckpointError: a file of weights is outside the folder of the ONNX file.
    """
    # Imported here, because a server starts without it.
    import onnx

    try:
        model = onnx.load(file, load_external_data=False)
    except Exception:  # noqa: BLE001 - a damaged file raises any error, and the export names it
        return [file]
    tensors = [each for part in (model.graph, *model.functions) for each in _tensors(part)]
    locations = {entry.value for each in tensors for entry in each.external_data if entry.key == "location"}
    weights = [path_inside(file.parent, location, file) for location in sorted(locations)]
    return [file, *(each for each in weights if each.is_file())]


def _tensors(part: Any) -> Iterator[Any]:
    """Yield the tensors of a graph or a function, and of the graphs inside its operators."""
    yield from getattr(part, "initializer", ())
    for node in part.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors(graph)


def _folder(file: Path) -> Path:
    """Return the folder of a file, without following links: those in the cache of Hugging Face lead elsewhere."""
    return Path(os.path.abspath(file)).parent  # noqa: PTH100 - resolve() follows links


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.onnx"), *folder.glob(f"{_FOLDER}/*.onnx")])
