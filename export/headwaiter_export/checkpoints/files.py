"""The first stage of reading a checkpoint: find its files, and read those that say what it is, but no weights."""

from dataclasses import dataclass
from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present
from headwaiter_export.checkpoints.m3 import has_m3_layers
from headwaiter_export.checkpoints.modules_json import Modules, read_modules
from headwaiter_proto.model_source import is_onnx
from headwaiter_server.runtime.bundle import MANIFEST


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckpointFiles:
    """The files of a checkpoint.

    Attributes:
        folder: folder of the checkpoint.
        modules: the modules of modules.json; the defaults of `Modules` without this file.
        has_modules: whether the folder has modules.json.
        config_json: content of config.json of the transformer.
        has_m3_layers: whether the folder has the layers of FlagEmbedding.
    """

    folder: Path
    modules: Modules
    has_modules: bool
    config_json: CheckpointJson
    has_m3_layers: bool


def open_files(folder: Path, route: str | None = None) -> CheckpointFiles:
    """Open a checkpoint folder; `route` chooses one of several routes of a Router.

    Raises:
        CheckpointError: a file is missing or malformed, or modules.json has a module that is not supported.
    """
    if is_onnx(str(folder)):
        raise CheckpointError(f"{folder} is an ONNX file: export it with headwaiter-export onnx {folder}")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the folder of a checkpoint, or OWNER/NAME on a hub")
    if is_present(folder / MANIFEST) and not is_present(folder / "config.json"):
        raise CheckpointError(f"{folder} is a bundle, not a checkpoint: serve it with headwaiter-server {folder}")
    has_modules = is_present(folder / "modules.json")
    if route is not None and not has_modules:
        raise CheckpointError(f"{folder} has no modules.json, so there is no route to choose: leave it out")
    modules = read_modules(folder, route) if has_modules else Modules(folder)
    if is_present(modules.transformer / "adapter_config.json"):
        raise CheckpointError(
            f"{modules.transformer} has adapter_config.json: merge the adapter into its model, with PEFT"
        )
    return CheckpointFiles(
        folder=folder,
        modules=modules,
        has_modules=has_modules,
        config_json=CheckpointJson.read(modules.transformer / "config.json"),
        has_m3_layers=has_m3_layers(folder),
    )
