"""Reads checkpoint folders of the BERT family and of the Vision Transformer.

A checkpoint is what `transformers` saves (config.json, safetensors, tokenizer.json), alone or as the first module of a
`sentence-transformers` model (modules.json). What a sequence is stands in `inputs.py`. Whatever would make our answers
differ from the checkpoint's own is refused by name.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from headwaiter_export.checkpoint_json import CheckpointError, Settings, read_json
from headwaiter_export.config import ConfigError, EncoderConfig, Pooling, TextConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.families import ACTIVATIONS, FAMILIES, Family
from headwaiter_export.prompts import with_prompts
from headwaiter_export.weights import read_safetensors, take

# Architectures of these kinds hold a whole encoder; what else they hold is left aside.
_ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining", "ForMaskedImageModeling")
# What `sentence-transformers` calls the poolings we have, in the settings it wrote earlier and writes now.
_POOLINGS = {
    "cls_token": Pooling.CLS,
    "cls": Pooling.CLS,
    "mean_tokens": Pooling.MEAN,
    "mean": Pooling.MEAN,
    "max_tokens": Pooling.MAX,
    "max": Pooling.MAX,
    "lasttoken": Pooling.LAST,
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model as it was saved.

    Attributes:
        encoder: with the checkpoint's weights, in float32.
        text: how it takes texts; None without a tokenizer.json.
    """

    encoder: Encoder
    text: TextConfig | None


def read_checkpoint(folder: Path, pooling: Pooling | None = None, normalize: bool | None = None) -> Checkpoint:
    """Read a checkpoint folder.

    Args:
        folder: of a `transformers` or a `sentence-transformers` model.
        pooling: in place of the model's own; where the folder does not say, that is the mean, as in
            `sentence-transformers`, and cls for a Vision Transformer.
        normalize: scale pooled vectors to unit length, in place of the model's own choice, which is not to where the
            folder does not say.

    Raises:
        CheckpointError: naming what is missing, or what cannot be reproduced.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder")
    modules = _read_modules(folder) if (folder / "modules.json").is_file() else _Modules(folder)
    folder = modules.transformer
    settings = Settings.read(folder / "config.json")
    family = _family(settings)
    pooling = pooling or modules.pooling or family.pooling
    if normalize is None:
        normalize = modules.normalize and pooling is not Pooling.NONE
    config = _encoder_config(settings, family, pooling=pooling, normalize=normalize)
    text = _read_text(folder, config)
    if text is not None and modules.prompts is not None:
        text = with_prompts(text, modules.prompts, pooled=modules.pools_prompt)
    return Checkpoint(_load_encoder(folder, settings, family, config), text)


@dataclass(frozen=True)
class _Modules:
    """What a folder says beside its transformer.

    Attributes:
        transformer: the transformer's own folder.
        pooling: how a sequence becomes one vector; None where it does not say.
        pools_prompt: the rows of a prompt take part in that.
        normalize: pooled vectors have unit length.
        prompts: where prompts stand, if anywhere.
    """

    transformer: Path
    pooling: Pooling | None = None
    pools_prompt: bool = True
    normalize: bool = False
    prompts: Settings | None = None


def _read_modules(folder: Path) -> _Modules:
    """Read what `sentence-transformers` writes beside a transformer."""
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(_is_module(module) for module in modules):
        raise CheckpointError(f"{folder / 'modules.json'} is no list of modules with a type and a path")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise CheckpointError(
                f"modules.json has a module {kind}: only Transformer, Pooling and Normalize are known"
            )
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}: it must be Transformer, Pooling and perhaps Normalize"
        )
    transformer, pooling = (folder / module["path"] for module in modules[:2])
    settings = Settings.read(pooling / "config.json")
    return _Modules(
        transformer,
        _read_pooling(settings),
        pools_prompt="include_prompt" not in settings.values or settings.switch("include_prompt"),
        normalize=len(kinds) == 3,
        prompts=Settings.read_if_there(folder / "config_sentence_transformers.json"),
    )


def _is_module(module: object) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(name), str) for name in ("type", "path"))


def _read_pooling(settings: Settings) -> Pooling:
    flags = "pooling_mode_"
    modes = [key.removeprefix(flags) for key, on in settings.values.items() if key.startswith(flags) and on]
    if not modes:
        return settings.choice("pooling_mode", _POOLINGS)
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise CheckpointError(
            f"{settings.path} pools by {' and '.join(modes)}: only cls, mean, max and lasttoken are known"
        )
    return _POOLINGS[modes[0]]


def _family(settings: Settings) -> Family:
    """Return the family a config.json belongs to.

    Raises:
        CheckpointError: it belongs to none, or is no encoder.
    """
    family = settings.choice("model_type", FAMILIES)
    for architecture in settings.texts("architectures"):
        if not architecture.endswith(_ENCODERS):
            raise CheckpointError(f"config.json has architecture {architecture}, whose head is no part of an encoder")
    if settings.values.get("is_decoder"):
        raise CheckpointError("config.json has is_decoder: only encoders, in which every token sees all, are known")
    if settings.values.get("position_embedding_type", "absolute") != "absolute":
        raise settings.refusal("position_embedding_type", "only 'absolute' is known")
    return family


def _encoder_config(settings: Settings, family: Family, *, pooling: Pooling, normalize: bool) -> EncoderConfig:
    choices: dict[str, Any] = {
        **family.choices,
        **family.input.sizes(settings),
        **{ours: settings.count(theirs) for ours, theirs in family.counts.items()},
        **{ours: settings.switch(theirs) for ours, theirs in family.switches.items() if theirs in settings.values},
        "activation": settings.choice(family.activation, ACTIVATIONS),
        "norm_eps": settings.values.get("layer_norm_eps", 1e-12),
    }
    try:
        return EncoderConfig(**choices, pooling=pooling, normalize=normalize)
    except ConfigError as error:
        raise CheckpointError(f"{settings.path} describes no encoder: {error}") from None


def _load_encoder(folder: Path, settings: Settings, family: Family, config: EncoderConfig) -> Encoder:
    """Read the weights under our own names.

    Raises:
        CheckpointError: naming a tensor that is missing, unexpected or of another shape.
    """
    tensors = {
        # Checkpoints converted from TensorFlow kept its names for the parameters of a norm.
        name.removeprefix(family.prefix)
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in _read_tensors(folder).items()
    }
    family.input.fold(tensors, settings, config)
    if config.layers > len(tensors):
        raise CheckpointError(f"config.json has {config.layers} layers, and the checkpoint {len(tensors)} tensors")
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Encoder(config).state_dict().items()}
    weights = {ours: take(tensors, family.tensor(ours), shape) for ours, shape in shapes.items()}
    for theirs in tensors:
        if not theirs.startswith(family.leftovers):
            raise CheckpointError(f"the checkpoint has a tensor {theirs}, which is no part of a known encoder")
    return Encoder.with_weights(config, weights)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read safetensors, in one file or in shards."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return read_safetensors(whole)
    if index.is_file():
        shards = sorted(set(Settings.read(index).mapping("weight_map").values()))
        return {name: tensor for shard in shards for name, tensor in read_safetensors(folder / shard).items()}
    if any(folder.glob("*.bin")):
        raise CheckpointError(f"{folder} has pickled weights, which can run code: save it again as safetensors")
    raise CheckpointError(f"{folder} has no model.safetensors")


def _read_text(folder: Path, config: EncoderConfig) -> TextConfig | None:
    """Read how the checkpoint takes texts, if it does, with its text maximum."""
    path = folder / "tokenizer.json"
    if not config.takes_tokens or not path.is_file():
        return None
    text = read_tokenizer(path, config)
    return replace(text, max_tokens=int(min(_text_limit(folder), config.max_tokens)))


def read_tokenizer(path: Path, config: EncoderConfig) -> TextConfig:
    """Read a tokenizer, freed of truncation and padding, for texts of the most tokens that the model takes.

    Raises:
        CheckpointError: it cannot be read, or gives ids that the model does not know.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more special
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise CheckpointError(f"{path} has no tokens")
    if largest >= config.vocabulary_size:
        raise CheckpointError(f"{path} gives ids up to {largest}, and the model knows {config.vocabulary_size}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextConfig(tokenizer.to_str(), config.max_tokens)


def _text_limit(folder: Path) -> float:
    """Return the most tokens the checkpoint takes of a text, or infinity where it does not say."""
    # sentence-transformers names the file by the architecture: sentence_bert_config.json, sentence_roberta_config.json.
    found = sorted(folder.glob("sentence_*_config.json"))
    sentence = Settings.read_if_there(found[0] if found else folder / "sentence_bert_config.json")
    if sentence.values.get("do_lower_case"):
        raise sentence.refusal("do_lower_case", "let tokenizer.json do the lower-casing")
    tokenizer = Settings.read_if_there(folder / "tokenizer_config.json")
    return sentence.limit("max_seq_length") or tokenizer.limit("model_max_length") or math.inf
