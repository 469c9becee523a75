"""Export a PyTorch module of the caller, whose own code computes the rows of the graphs and of the reference."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_model
from headwaiter_export.bundle.graphs import MODULE_GRAPHS, GraphPlan
from headwaiter_export.bundle.verification import Report
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.checkpoints.texts import TextConfig, read_tokenizer, with_prompts
from headwaiter_export.config.choices import ROW_POOLINGS, Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.found_attention import NotPackableError
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_server.runtime.bundle import TOKENIZER


def export_module(
    module: nn.Module,
    destination: Path | str,
    *,
    max_tokens: int,
    vocabulary_size: int = 0,
    feature_width: int = 0,
    pooling: str = "mean",
    normalize: bool = False,
    tokenizer: Path | str | None = None,
    name: str | None = None,
    report: Report = lambda line: None,
    step: Report = lambda what: None,
    plans: Collection[GraphPlan] | None = None,
) -> None:
    """Write a bundle of a module; after an error, write nothing.

    The module maps one sequence, token ids [1, n] or features [1, n, feature_width], to rows [1, n, width]. If it needs
    a second argument, that is a mask of ones [1, n]. Its outputs in eval mode are the reference of the bundle.

    Args:
        module: the module, in float32 on the CPU.
        destination: folder of the bundle; it must be missing or empty.
        max_tokens: most tokens of a sequence.
        vocabulary_size: number of token ids, for a module of token ids.
        feature_width: width of a feature row, for a module of features.
        pooling: how the rows of a sequence become one vector: cls, mean, last, max and others of `Pooling`, or none.
        normalize: whether pooled vectors are scaled to unit length.
        tokenizer: tokenizer.json, or a folder that contains it, and perhaps the prompts of sentence-transformers in
            config_sentence_transformers.json; None to accept no texts.
        name: name of the model in requests and replies; None for the class of the module.
        report: called with a line of text after each step.
        step: called with what begins now.
        plans: graphs to write; None for all that a module can have.

    Raises:
        BundleError: the module cannot run on packed rows, or the bundle cannot be written.
        CheckpointError: the tokenizer cannot be read, or does not fit the module.
        ConfigError: an argument is wrong, or the module cannot be run.
    """
    if pooling not in (*ROW_POOLINGS, Pooling.NONE):
        raise ConfigError(f"pooling is {pooling!r}: choose one of {', '.join((*ROW_POOLINGS, Pooling.NONE))}")

    def read() -> LoadedModel:
        encoder = ModuleEncoder.of(
            module,
            vocabulary_size=vocabulary_size,
            feature_width=feature_width,
            max_tokens=max_tokens,
            pooling=Pooling(pooling),
            normalize=normalize,
        )
        layers = len(encoder.found.layers)
        report(f"packed: the module has {layers} attention layers, whose masks and biases depend on distances at most")
        return LoadedModel(encoder, None if tokenizer is None else _read_text(Path(tokenizer), encoder.config))

    chosen = [plan for plan in MODULE_GRAPHS if plans is None or plan in plans]
    if chosen[:1] != [MODULE_GRAPHS[0]]:
        raise ConfigError(f"the module is checked with {MODULE_GRAPHS[0].file}: let --graphs and --precision keep it")
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        with torch.no_grad():
            export_model(read, Path(destination), name or type(module).__name__, report, step, chosen)
    except NotPackableError as error:
        # What cannot be packed could be served padded, with another graph.
        raise BundleError(f"the module cannot run on packed rows, without padding: {error}") from error
    finally:
        for each in training:
            each.training = True


def _read_text(path: Path, config: EncoderConfig) -> TextConfig:
    """Read a tokenizer, and the prompts beside it if `path` is a folder."""
    if not config.takes_tokens:
        raise ConfigError("the module takes features, and a tokenizer makes token ids: leave the tokenizer out")
    if not path.is_dir():
        return read_tokenizer(path, config)
    prompts = CheckpointJson.read_if_present(path / "config_sentence_transformers.json")
    config_json = CheckpointJson.read_if_present(path / "config.json")
    return with_prompts(read_tokenizer(path / TOKENIZER, config), prompts, config_json, None, None, pooled=True)
