"""Read the modules of a `sentence-transformers` model: modules.json, and the folder of each module."""

from dataclasses import dataclass
from pathlib import Path

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson, read_json
from headwaiter_export.config import Pooling

# Names of poolings in new versions of `sentence-transformers`.
_POOLINGS = {
    "cls": Pooling.CLS,
    "mean": Pooling.MEAN,
    "max": Pooling.MAX,
    "lasttoken": Pooling.LAST,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
}
# Old versions have a flag for each pooling, with this prefix and, for some poolings, another name.
_FLAG_PREFIX = "pooling_mode_"
_FLAG_NAMES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "weightedmean_tokens": "weightedmean"}
_POOLING_FIELDS = ("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")
# The supported values of fields of `sentence-transformers` that could change results.
_NORMALIZE_FIELDS = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
_MODEL_FIELDS = {"model_type": "SentenceTransformer", "truncate_dim": None}


@dataclass(frozen=True)
class Modules:
    """The modules of a `sentence-transformers` model; the defaults are those of a plain `transformers` folder.

    Attributes:
        transformer: folder of the transformer.
        pooling: pooling of the model; None if the folder names no pooling.
        pools_prompt: whether pooling includes the rows of prompts.
        normalize: whether pooled vectors have unit length.
        prompts: content of config_sentence_transformers.json; None in a plain folder.
    """

    transformer: Path
    pooling: Pooling | None = None
    pools_prompt: bool = True
    normalize: bool = False
    prompts: CheckpointJson | None = None


def read_modules(folder: Path) -> Modules:
    """Read the modules of a `sentence-transformers` folder.

    Raises:
        CheckpointError: a file is missing or malformed, or a module or a setting is not supported.
    """
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(_is_module(module) for module in modules):
        raise CheckpointError(
            f"{folder / 'modules.json'} is not a list of modules with type and path: save the model again"
        )
    for module in modules:
        if not module["type"].startswith("sentence_transformers."):
            raise CheckpointError(f"modules.json has the type {module['type']!r}: the export does not run its code")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}: it must be Transformer, Pooling and optionally Normalize"
        )
    transformer, pooling, *normalize = (folder / module["path"] for module in modules)
    config_json = CheckpointJson.read(pooling / "config.json")
    for each in normalize:
        CheckpointJson.read_if_present(each / "config.json").require(_NORMALIZE_FIELDS, known=())
    prompts = CheckpointJson.read_if_present(folder / "config_sentence_transformers.json")
    prompts.require(_MODEL_FIELDS)
    return Modules(
        transformer,
        _read_pooling(config_json),
        pools_prompt=config_json.flag("include_prompt", default=True),
        normalize=bool(normalize),
        prompts=prompts,
    )


def _is_module(module: object) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(name), str) for name in ("type", "path"))


def _read_pooling(config_json: CheckpointJson) -> Pooling:
    values = config_json.values
    flags = [name for name in values if name.startswith(_FLAG_PREFIX)]
    config_json.require({}, known=[*flags, *_POOLING_FIELDS])
    modes = [
        _FLAG_NAMES.get(name, name) for name in (flag.removeprefix(_FLAG_PREFIX) for flag in flags if values[flag])
    ]
    if not modes or "pooling_mode" in values:
        pooling = config_json.choice("pooling_mode", _POOLINGS)
        if modes and modes != [values["pooling_mode"]]:
            raise config_json.error("pooling_mode", f"the flags name {' and '.join(modes)}; remove the wrong ones")
        return pooling
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise CheckpointError(
            f"{config_json.path} has pooling {' and '.join(modes)}: it must be one of {', '.join(_POOLINGS)}"
        )
    return _POOLINGS[modes[0]]
