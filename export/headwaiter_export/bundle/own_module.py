"""Export a PyTorch module of the caller, whose own code computes the outputs of the graphs and of the reference.

Graphs are packed if the module can run on packed rows, and padded otherwise.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_model
from headwaiter_export.bundle.graphs import DEFAULT_GRAPHS, MODULE_GRAPHS, PADDED_GRAPHS, GraphPlan
from headwaiter_export.bundle.verification import Report
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.checkpoints.texts import TextConfig, read_tokenizer, with_prompts
from headwaiter_export.config.choices import ROW_POOLINGS, Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadConfig, usual_function
from headwaiter_export.encoder.found_attention import NotPackableError
from headwaiter_export.encoder.from_torch import has_changed_activation
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_export.encoder.padded_module import PaddedModuleEncoder
from headwaiter_proto.encoder_pb2 import ImageFormat
from headwaiter_proto.manifest_pb2 import HubSource
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
    labels: Sequence[str] = (),
    name: str | None = None,
    report: Report = lambda line: None,
    step: Report = lambda what: None,
    plans: Collection[GraphPlan] | None = None,
) -> None:
    """Write a bundle of a module; after an error, write nothing.

    The module maps sequences, token ids [B, N] or features [B, N, feature_width], to rows [B, N, width] or vectors
    [B, width]. If it needs a second argument, or has an argument `attention_mask`, that is a mask [B, N], 1 for tokens
    and 0 for padding. Its outputs in eval mode for each sequence alone are the reference of the bundle.

    Graphs need no padding if all attention of the module is measured to be free of a mask, causal, in a window, or to
    depend on distances. Other graphs pad sequences: `report` and the manifest say why, and which sequences may share a
    batch.

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
        labels: names of the labels, for a module that gives logits [B, labels] or [B, N, labels].
        name: name of the model in requests and replies; None for the class of the module.
        report: called with a line of text after each step.
        step: called with what begins now.
        plans: graphs to write; None for all that a module can have.

    Raises:
        BundleError: the module cannot be traced, or the bundle cannot be written.
        CheckpointError: the tokenizer cannot be read, or does not fit the module.
        ConfigError: an argument is wrong, or the module cannot be run.
    """
    if pooling not in (*ROW_POOLINGS, Pooling.NONE):
        raise ConfigError(f"pooling is {pooling!r}: choose one of {', '.join((*ROW_POOLINGS, Pooling.NONE))}")

    choices: dict[str, Any] = {
        "vocabulary_size": vocabulary_size,
        "feature_width": feature_width,
        "max_tokens": max_tokens,
        "pooling": Pooling(pooling),
        "normalize": normalize,
    }
    head = HeadConfig((*labels,), usual_function(len(labels))) if labels else None

    def finish(encoder: ModuleEncoder) -> TextConfig | None:
        return None if tokenizer is None else _read_text(Path(tokenizer), encoder.config)

    export_encoder(module, finish, Path(destination), name, report, step, plans, head=head, **choices)


def export_encoder(
    module: nn.Module,
    finish: Callable[[ModuleEncoder], TextConfig | None],
    destination: Path,
    name: str | None,
    report: Report,
    step: Report,
    plans: Collection[GraphPlan] | None,
    *,
    head: HeadConfig | None,
    source: HubSource | None = None,
    image: ImageFormat | None = None,
    **choices: Any,
) -> None:
    """Write a bundle of a module as `export_module` does.

    Args:
        module: the module.
        finish: completes an encoder of the module, and returns its tokenizer.
        destination: folder of the bundle.
        name: name of the model; None for the class of the module.
        report: as in `export_module`.
        step: as in `export_module`.
        plans: as in `export_module`.
        head: the labels of a module that gives logits.
        source: where the module came from; None if it did not come from a hub.
        image: the images that the module takes, all of one size; None for other modules.
        choices: as in `ModuleEncoder.of`.
    """
    # The wrapper of torch.compile hides the class and the arguments of a module.
    module = getattr(module, "_orig_mod", module)
    if plans is None:
        plans = (*DEFAULT_GRAPHS, *PADDED_GRAPHS)
    packed, padded = ([plan for plan in graphs if plan in plans] for graphs in (MODULE_GRAPHS, PADDED_GRAPHS))

    def read_packed() -> LoadedModel:
        encoder = ModuleEncoder.of(module, **choices)
        layers = len(encoder.found.layers) if encoder.found else 0
        report(f"packed: the module has {layers} attention layers, whose masks and biases depend on distances at most")
        return LoadedModel(encoder, finish(encoder), source=source)

    def read_padded(reason: str) -> LoadedModel:
        encoder = PaddedModuleEncoder.padded(module, reason, head, **choices)
        report(f"padded: {reason}")
        return LoadedModel(encoder, finish(encoder), image, source=source)

    def write(read: Callable[[], LoadedModel], graphs: Sequence[GraphPlan], first: GraphPlan) -> None:
        if graphs[:1] != [first]:
            raise ConfigError(f"the module is checked with {first.file}: let --graphs and --precision keep it")
        export_model(read, destination, name or type(module).__name__, report, step, graphs)

    layers = (each for each in module.modules() if isinstance(each, nn.TransformerEncoderLayer))
    if any(map(has_changed_activation, layers)):
        report(
            "an activation was changed after its layer was made: graphs compute the new one, and PyTorch's fast path, "
            "which runs in eval mode without gradients, still computes the old one"
        )
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        with torch.no_grad():
            reason = "only padded graphs are wanted" if head is None else "the module gives logits"
            if image is not None:
                reason = "all images have one size"
            elif head is None and (packed or not padded):
                try:
                    return write(read_packed, packed, MODULE_GRAPHS[0])
                except NotPackableError as error:
                    if not padded:
                        raise BundleError(f"the module cannot run without padding: {error}") from error
                    reason = str(error)
            try:
                write(partial(read_padded, reason), padded, PADDED_GRAPHS[0])
            except NotPackableError as error:
                raise BundleError(f"the module cannot be traced: {error}") from error
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
    return with_prompts(read_tokenizer(path / TOKENIZER, config), prompts)
