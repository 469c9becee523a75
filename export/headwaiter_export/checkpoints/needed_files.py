"""The files of a checkpoint that the export may read. None of them is code."""

from collections.abc import Callable, Iterable
from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointJson, is_present, path_inside, read_json

# The settings of a Transformer module, in the order in which sentence-transformers tries the names.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The files of weights, in the order in which the export looks for them. An index lists the shards of a file.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"
# A folder that SetFit saved has this file.
SETFIT_SETTINGS = "config_setfit.json"
# What else the folder of a module may have.
_OTHERS = (
    *("config.json", "modules.json", "router_config.json", "config_sentence_transformers.json", *TRANSFORMER_SETTINGS),
    *("tokenizer.json", "vocab.txt", "vocab.json", "added_tokens.json", "special_tokens_map.json"),
    *("tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja"),
    *("processor_config.json", "preprocessor_config.json", "adapter_config.json"),
    # The small layers of FlagEmbedding.
    *("sparse_linear.pt", "colbert_linear.pt"),
    SETFIT_SETTINGS,
    *(f"{name}{_INDEX}" for name in WEIGHTS),
)
_ROUTER = "Router"
# The ends of the classes of modules without weights.
_WEIGHTLESS = ("Pooling", "Normalize", "Dropout", "MultiVectorMask", "LogitScore", _ROUTER)


def needed_files(bring: Callable[[list[str]], Path]) -> list[str]:
    """Return the files of a checkpoint that the export may read, as paths in its folder; some may not exist.

    `bring` brings those that exist into the folder, and returns the folder. Each call has more files, because files
    name others, and because pickled weights are needed only where there are no safetensors.

    Raises:
        CheckpointError: a file that names others is malformed, or names one outside the folder.
    """
    modules, files = {"": ""}, list[str]()
    while (others := _in_folders(["", *modules], _OTHERS)) != files:
        files = others
        folder = bring(files)
        modules = _modules(folder)
    weighted = _weighted(modules)
    for name in WEIGHTS:
        if weighted:
            files += [file for path in weighted for file in _in_folders([path], _weights(folder / path, name))]
            folder = bring(files)
            weighted = [path for path in weighted if not _has(folder / path, name)]
    return files


def has_weights(folder: Path) -> bool:
    """Return whether each module of a checkpoint that needs weights has a file or an index of them.

    Raises:
        CheckpointError: a file that names others is malformed, or names one outside the folder.
    """
    return all(any(_has(folder / path, name) for name in WEIGHTS) for path in _weighted(_modules(folder)))


def _in_folders(folders: Iterable[str], names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((Path(folder) / name).as_posix() for folder in folders for name in names))


def _modules(folder: Path) -> dict[str, str]:
    """Return the folders of the modules of a checkpoint, with their classes."""
    modules_json = folder / "modules.json"
    if not is_present(modules_json):
        return {"": ""}
    listed = read_json(modules_json)
    # `read_modules` refuses what is malformed.
    modules = {
        each["path"]: each["type"]
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and isinstance(each.get("path"), str) and isinstance(each.get("type"), str)
    }
    for path, kind in list(modules.items()):
        types = CheckpointJson.read_if_present(path_inside(folder, path, modules_json) / "router_config.json")
        if kind.endswith(_ROUTER) and "types" in types.values:
            routed = types.string_map("types")
            modules |= {
                (Path(path) / name).as_posix(): routed[name] for name in routed if path_inside(folder, name, types.path)
            }
    return modules


def _weighted(modules: dict[str, str]) -> list[str]:
    return [path for path, kind in modules.items() if not kind.endswith(_WEIGHTLESS)]


def _weights(folder: Path, name: str) -> list[str]:
    """Return the file of weights of this name, and the shards that its index lists."""
    index = CheckpointJson.read_if_present(folder / f"{name}{_INDEX}")
    shards = index.string_map("weight_map").values() if index.values else ()
    return [name, *sorted({shard for shard in shards if path_inside(folder, shard, index.path)})]


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file() or (folder / f"{name}{_INDEX}").is_file()
