"""Read checkpoint folders of the families that families.py lists.

A checkpoint is a folder saved by `transformers` (config.json, weights, tokenizer.json), alone or as the first
module of a `sentence-transformers` model (modules.json). `read_checkpoint` turns it into an encoder, a tokenizer and
prompts. A setting that the encoder cannot reproduce is an error that names the setting.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwaiter_export.checkpoint_heads import read_head, with_head_names
from headwaiter_export.checkpoint_inputs import PatchInput
from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson, read_json
from headwaiter_export.checkpoint_text import read_text
from headwaiter_export.config import ConfigError, EncoderConfig, Pooling
from headwaiter_export.encoder import Encoder
from headwaiter_export.families import ACTIVATIONS, FAMILIES, Family
from headwaiter_export.text_config import TextConfig, with_prompts
from headwaiter_export.tokenizer_classes import gives_token_types
from headwaiter_export.weights import read_pickle, read_safetensors, take_tensor

# Most layers of a model whose layers share tensors.
_MOST_SHARED_LAYERS = 1000
# Names of poolings in old and new versions of `sentence-transformers`.
_POOLINGS = {
    "cls_token": Pooling.CLS,
    "cls": Pooling.CLS,
    "mean_tokens": Pooling.MEAN,
    "mean": Pooling.MEAN,
    "max_tokens": Pooling.MAX,
    "max": Pooling.MAX,
    "lasttoken": Pooling.LAST,
}
_POOLING_FIELDS = ("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")
# The supported values of fields of `sentence-transformers` that could change results.
_NORMALIZE_FIELDS = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
_MODEL_FIELDS = {"model_type": "SentenceTransformer", "truncate_dim": None}
_CROSS_ENCODER_FIELDS = {"model_type": "CrossEncoder", "prompts": None, "default_prompt_name": None}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready for export.

    Attributes:
        encoder: the encoder in float32.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
    """

    encoder: Encoder
    text: TextConfig | None


def read_checkpoint(folder: Path, pooling: Pooling | None = None, normalize: bool | None = None) -> LoadedModel:
    """Read a checkpoint folder.

    Args:
        folder: folder of a `transformers` or `sentence-transformers` model.
        pooling: pooling to use; None for the checkpoint's own, or, if the checkpoint names no pooling, cls for a Vision
            Transformer and mean for all others.
        normalize: whether to scale pooled vectors to unit length; None for the checkpoint's own choice, which is false
            unless modules.json lists Normalize.

    Raises:
        CheckpointError: a part is missing, or a setting cannot be reproduced; the message names it.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the folder of a checkpoint")
    modules = _read_modules(folder) if (folder / "modules.json").is_file() else _Modules(folder)
    folder = modules.transformer
    config_json = CheckpointJson.read(folder / "config.json")
    family = _read_family(config_json)
    head = read_head(config_json, family, modules.cross_encoder)
    family = with_head_names(family, head)
    pooling = pooling or modules.pooling or (Pooling.NONE if head else family.default_pooling)
    if normalize is None:
        normalize = modules.normalize and pooling is not Pooling.NONE
    token_types = _token_types(folder, config_json, family) if head else 0
    config = _encoder_config(
        config_json, family, pooling=pooling, normalize=normalize, head=head, token_types=token_types
    )
    text = read_text(folder, config_json, config)
    if text is not None and modules.prompts is not None:
        text = with_prompts(text, modules.prompts, pooled=modules.pools_prompt)
    return LoadedModel(_load_encoder(folder, config_json, family, config), text)


@dataclass(frozen=True)
class _Modules:
    """The modules of a `sentence-transformers` model; the defaults are those of a plain `transformers` folder.

    Attributes:
        transformer: folder of the transformer.
        pooling: pooling of the model; None if the folder names no pooling.
        pools_prompt: whether pooling includes the rows of prompts.
        normalize: whether pooled vectors have unit length.
        prompts: content of config_sentence_transformers.json; None in a plain folder and for a cross-encoder.
        cross_encoder: content of the same file for a cross-encoder; otherwise without fields.
    """

    transformer: Path
    pooling: Pooling | None = None
    pools_prompt: bool = True
    normalize: bool = False
    prompts: CheckpointJson | None = None
    cross_encoder: CheckpointJson = field(default_factory=lambda: CheckpointJson(Path(), {}))


def _read_modules(folder: Path) -> _Modules:
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(_is_module(module) for module in modules):
        raise CheckpointError(
            f"{folder / 'modules.json'} is not a list of modules with type and path: save the model again"
        )
    for module in modules:
        if not module["type"].startswith("sentence_transformers."):
            raise CheckpointError(f"modules.json has the type {module['type']!r}: the export does not run its code")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    settings = CheckpointJson.read_if_present(folder / "config_sentence_transformers.json")
    if kinds == ["Transformer"] and settings.values.get("model_type") == "CrossEncoder":
        settings.require(_CROSS_ENCODER_FIELDS)
        return _Modules(folder / modules[0]["path"], cross_encoder=settings)
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}: it must be Transformer, Pooling and optionally Normalize"
        )
    transformer, pooling, *normalize = (folder / module["path"] for module in modules)
    config_json = CheckpointJson.read(pooling / "config.json")
    for each in normalize:
        CheckpointJson.read_if_present(each / "config.json").require(_NORMALIZE_FIELDS, known=())
    settings.require(_MODEL_FIELDS)
    return _Modules(
        transformer,
        _read_pooling(config_json),
        pools_prompt=config_json.flag("include_prompt", default=True),
        normalize=bool(normalize),
        prompts=settings,
    )


def _is_module(module: object) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(name), str) for name in ("type", "path"))


def _read_pooling(config_json: CheckpointJson) -> Pooling:
    # Old versions have a flag for each pooling, new versions the name of one.
    prefix = "pooling_mode_"
    fields = [name for name in config_json.values if name.startswith(prefix)]
    config_json.require({}, known=[*fields, *_POOLING_FIELDS])
    modes = [key.removeprefix(prefix) for key, on in config_json.values.items() if key.startswith(prefix) and on]
    if not modes:
        return config_json.choice("pooling_mode", _POOLINGS)
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise CheckpointError(
            f"{config_json.path} has pooling {' and '.join(modes)}: it must be one of cls, mean, max and lasttoken"
        )
    return _POOLINGS[modes[0]]


def _read_family(config_json: CheckpointJson) -> Family:
    """Return the family of a checkpoint, or raise CheckpointError if the checkpoint is not a supported encoder."""
    family = config_json.choice("model_type", FAMILIES)
    config_json.require({"auto_map": None, "quantization_config": None, **family.required_fields})
    if (config_json.path.parent / "adapter_config.json").is_file():
        raise CheckpointError(f"{config_json.path.parent} has adapter_config.json: merge the adapter into the weights")
    if config_json.values.get("is_decoder"):
        raise CheckpointError("config.json has is_decoder: only encoders are supported")
    if config_json.values.get("position_embedding_type", "absolute") != "absolute":
        raise config_json.error("position_embedding_type", "only 'absolute' is supported")
    return family


def _token_types(folder: Path, config_json: CheckpointJson, family: Family) -> int:
    """Return the number of token types that sequences of a checkpoint can have; 0 if all tokens have the same type."""
    if isinstance(family.input, PatchInput):
        return 0
    types = family.input.token_types(config_json)
    return types if not (folder / "tokenizer.json").is_file() or gives_token_types(folder, config_json) else 0


def _encoder_config(config_json: CheckpointJson, family: Family, **decided: Any) -> EncoderConfig:
    choices: dict[str, Any] = {
        **family.fixed_fields,
        **family.input.sizes(config_json),
        **{name: config_json.size(field) for name, field in family.size_fields.items()},
        **{
            name: config_json.boolean(field)
            for name, field in family.boolean_fields.items()
            if field in config_json.values
        },
        "activation": config_json.choice(family.activation_field, ACTIVATIONS),
        "norm_eps": family.norm_eps or config_json.values.get("layer_norm_eps", family.default_norm_eps),
    }
    try:
        return EncoderConfig(**choices, **decided)
    except ConfigError as error:
        raise CheckpointError(f"{config_json.path} does not describe a supported encoder: {error}") from None


def _load_encoder(folder: Path, config_json: CheckpointJson, family: Family, config: EncoderConfig) -> Encoder:
    """Read the weights, and rename them as in `Encoder.state_dict()`."""
    tensors = {
        # Checkpoints converted from TensorFlow keep its names for the parameters of LayerNorm.
        name.removeprefix(family.tensor_prefix)
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in _read_tensors(folder).items()
    }
    family.input.fold_tensors(tensors, config_json, config)
    if config.layers > (_MOST_SHARED_LAYERS if family.shared_module_names else len(tensors)):
        raise CheckpointError(
            f"config.json has {config.layers} layers, but the checkpoint {len(tensors)} tensors: correct config.json"
        )
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Encoder(config).state_dict().items()}
    weights: dict[str, Tensor] = {}
    taken: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        source = family.tensor_name(name)
        if source not in taken:
            taken[source] = take_tensor(tensors, source, shape)
        weights[name] = taken[source]
    for name in tensors:
        if not name.startswith(family.ignored_prefixes):
            raise CheckpointError(
                f"the checkpoint has tensor {name}, which config.json does not "
                "describe: correct config.json, or remove the tensor if hidden rows do not depend on it"
            )
    return Encoder.with_weights(config, weights)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of the file of weights, or of the shards that its index lists; safetensors before pickle."""
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_pickle)):
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file():
            return read(whole)
        if index.is_file():
            shards = sorted(set(CheckpointJson.read(index).string_map("weight_map").values()))
            return {tensor: value for shard in shards for tensor, value in read(folder / shard).items()}
    raise CheckpointError(f"{folder} has neither model.safetensors nor pytorch_model.bin: save the model again")
