"""Read what the files beside an ONNX file say of it: sequences, texts, pooling and labels.

They are those of the checkpoint that the file was made of, and are read as for `headwaiter-export checkpoint`. A file
may also stand alone: then the caller says what the file itself does not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headwaiter_export.checkpoints.families.model_types import FAMILIES, FEATURE_FAMILIES
from headwaiter_export.checkpoints.files import open_files
from headwaiter_export.checkpoints.heads import read_function, unnamed_labels
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present
from headwaiter_export.checkpoints.library_model import read_text_without_family
from headwaiter_export.checkpoints.modules_json import (
    Modules,
    check_are_usual,
    check_widths,
    read_modules,
    read_weights,
)
from headwaiter_export.checkpoints.onnx_paths import settings_folder
from headwaiter_export.checkpoints.outputs import Choices
from headwaiter_export.checkpoints.plan import ReadWeights, plan_model
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import read_checkpoint_tokenizer
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadConfig, ScoreFunction
from headwaiter_export.graphs.onnx_encoder import OnnxEncoder, OnnxUse, choose_output
from headwaiter_export.graphs.onnx_file import IDS, TYPES, OnnxFile
from headwaiter_proto.encoder_pb2 import ImageFormat

# The names of the limit of a sequence in config.json, besides those of the families that the export knows.
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True)
class OnnxChoices:
    """What a caller says of an ONNX file that has no files beside it, or instead of them.

    Attributes:
        outputs: names of outputs, by kind: hidden, pooled or logits.
        pooling: how hidden rows become one vector.
        normalize: whether vectors are scaled to unit length.
        labels: names of the labels of logits.
        max_tokens: most tokens of a sequence.
        vocabulary_size: number of token ids.
    """

    outputs: Mapping[str, str]
    pooling: Pooling | None = None
    normalize: bool | None = None
    labels: Sequence[str] = ()
    max_tokens: int | None = None
    vocabulary_size: int | None = None


def read_onnx(path: Path, choices: OnnxChoices) -> LoadedModel:
    """Read an ONNX file, and the settings beside it.

    Raises:
        CheckpointError: a setting cannot be reproduced.
        ConfigError: the file cannot be served, or a choice does not fit it.
    """
    file, folder, lines = OnnxFile.open(path), settings_folder(path), list[str]()
    outputs = file.known_outputs(choices.outputs)
    modules = read_modules(folder) if is_present(folder / "modules.json") else Modules(folder)
    config_json = CheckpointJson.read_if_present(modules.transformer / "config.json")
    function = read_function(config_json, modules.cross_encoder, len(choices.labels))
    used: list[OnnxUse] = []

    def make_encoder(described: EncoderConfig, read_added: ReadWeights, image: ImageFormat | None) -> OnnxEncoder:
        described = _with_choices(described, choices, function)
        if TYPES not in file.inputs:
            described = replace(described, token_types=0)
        _check_inputs(file, described, image)
        has_modules = is_present(folder / "modules.json")
        chosen = choices.pooling, choices.normalize
        use = choose_output(file, outputs, described, *chosen, image, has_modules=has_modules)
        _check_choices(file, use, choices)
        used.append(use)
        encoder = OnnxEncoder.of_file(file, described, use, image)
        needed = encoder.state_dict()
        added = read_added({name: tuple(each.shape) for name, each in needed.items()})
        if missing := needed.keys() - added.keys():
            raise CheckpointError(
                f"{file.path} gives the rows before {min(missing)}, a weight that no file beside it has: serve another "
                "output with --outputs, or choose a pooling with --pooling"
            )
        encoder.load_state_dict(added)
        return encoder

    if config_json.values.get("model_type") in {**FAMILIES, **FEATURE_FAMILIES}:
        plan = plan_model(open_files(folder), Choices(pooling=choices.pooling, normalize=choices.normalize))
        encoder = make_encoder(plan.config, plan.read_added, plan.image)
        model = LoadedModel(encoder, plan.text, plan.image, plan.sound, plan.assumptions)
    else:
        model = _read_without_family(file, folder, modules, config_json, choices, outputs, make_encoder)
    assert isinstance(model.encoder, OnnxEncoder)
    (use,) = used
    text, config = model.text, model.encoder.config
    if text is not None:
        text = replace(text, max_tokens=min(text.max_tokens, config.max_tokens))
        if text.pairs and config.head is None:
            text = replace(text, pairs=False, pair_template=None, first_text_keeps_more=False)
        if text.pooling_skips_prompt and not model.encoder.gives_rows:
            raise CheckpointError(
                f"{folder / 'modules.json'} has a pooling with include_prompt False, and {file.path} pools all rows "
                "itself: serve its rows, with --outputs hidden=NAME"
            )
    others = [name for name in file.outputs if name != use.output and not (use.found and name in outputs.values())]
    lines += [f"{use.output} is served{f' with the pooling {config.pooling}' if use.kind == 'hidden' else ''}"]
    lines += [use.found] if use.found else []
    lines += [f"the outputs {', '.join(others)} are left out"] if others else []
    # The pooling of the file replaces an assumed one.
    kept = [each for each in model.assumptions if not (use.found and "names no pooling" in each)]
    return replace(model, text=text, assumptions=(*kept, *lines))


def _check_inputs(file: OnnxFile, described: EncoderConfig, image: ImageFormat | None) -> None:
    """Check that a file takes what the files beside it describe."""
    wanted = "pixels" if image is not None else "token ids" if described.takes_tokens else "features"
    taken = "token ids" if file.features is None else "pixels" if file.takes_images else "features"
    if wanted != taken:
        raise CheckpointError(
            f"{file.path} takes {taken}, and the files beside it describe {wanted}: correct one of both"
        )
    if image is not None and (image.height % image.patch_size or image.width % image.patch_size):
        raise CheckpointError(
            f"{file.path} takes images of {image.height} × {image.width}, and patches of {image.patch_size} leave "
            "pixels over: export the checkpoint itself with headwaiter-export checkpoint"
        )
    unsupported = {
        "a decoder": described.decoder,
        "sparse vectors": described.vocabulary_head,
        "several poolings": described.concatenated,
        "modules that transform each row": described.row_modules,
        "samples of sounds": described.waveform,
    }
    if found := [name for name, value in unsupported.items() if value]:
        raise CheckpointError(
            f"the files beside {file.path} describe {found[0]}, which the export cannot append to an ONNX file: export "
            "the checkpoint itself with headwaiter-export checkpoint"
        )


def _check_choices(file: OnnxFile, use: OnnxUse, choices: OnnxChoices) -> None:
    """Check that each choice has an effect on the output that is served."""
    served = f"{file.path} gives {use.output}, which is served as"
    if choices.labels and use.kind != "logits":
        raise ConfigError(f"{served} {use.kind}: leave --labels out, or give --outputs logits=NAME")
    if use.kind == "logits" and (choices.pooling not in (None, Pooling.NONE) or choices.normalize):
        raise ConfigError(f"{served} logits: leave --pooling and --normalize out, or give --outputs hidden=NAME")
    if use.kind == "pooled" and choices.pooling is not None:
        raise ConfigError(f"{served} vectors: leave --pooling out, or give --outputs hidden=NAME")


def _with_choices(described: EncoderConfig, choices: OnnxChoices, function: ScoreFunction) -> EncoderConfig:
    """Return a description with what the caller said; `function` makes scores of the logits of the caller's labels."""
    changed: dict[str, Any] = {}
    if choices.labels:
        if described.head is not None and described.head.per_token:
            function = described.head.function
        changed["head"] = HeadConfig(tuple(choices.labels), function)
    if choices.max_tokens is not None:
        changed["max_tokens"] = choices.max_tokens
    if choices.vocabulary_size is not None:
        changed["vocabulary_size"] = choices.vocabulary_size
    return replace(described, **changed) if changed else described


def _read_without_family(
    file: OnnxFile,
    folder: Path,
    modules: Modules,
    config_json: CheckpointJson,
    choices: OnnxChoices,
    outputs: Mapping[str, str],
    make_encoder: Callable[[EncoderConfig, ReadWeights, ImageFormat | None], OnnxEncoder],
) -> LoadedModel:
    """Read a file without a config.json, or with that of a family that the export does not know."""
    if file.takes_images:
        raise CheckpointError(
            f"{file.path} takes pixels, and {folder} has no config.json of a family of images: put it and "
            "preprocessor_config.json beside the file"
        )
    check_are_usual(modules, str(folder))
    lines, head = list[str](), None
    if "logits" in outputs:
        head = _head(file, outputs["logits"], config_json, modules)
    elif modules.pooling is None and choices.pooling is None and "pooled" not in outputs:
        lines.append("no file names a pooling: mean; --pooling chooses another")
    limit, source = _limit(modules.transformer, config_json, choices)
    sizes: dict[str, Any] = {"vocabulary_size": choices.vocabulary_size or file.vocabulary_size()}
    if file.features is not None:
        sizes = {"feature_width": file.inputs[file.features].shape[-1] or 0}
    elif not sizes["vocabulary_size"]:
        raise CheckpointError(f"{file.path} does not show how many token ids there are: give --vocabulary-size")
    described = EncoderConfig(
        **sizes,
        max_tokens=limit,
        d_model=1,
        heads=1,
        layers=1,
        d_ff=0,
        pooling=modules.pooling or Pooling.MEAN,
        concatenated=modules.concatenated,
        after_pooling=tuple(each.module for each in modules.after_pooling),
        normalize=modules.normalize,
        token_types=config_json.values.get("type_vocab_size", 2) if head is not None else 0,
    )
    described = replace(described, head=head) if head else described
    lines.append(f"sequences have at most {limit:,} tokens, {source}")
    encoder = make_encoder(described, partial(read_weights, modules), None)
    if encoder.config.after_pooling:
        check_widths(modules.after_pooling, encoder.config.pooling_width)
    text = None
    if IDS in file.inputs:
        has_modules = modules != Modules(folder)
        saved = read_checkpoint_tokenizer(modules.transformer, config_json)
        text = read_text_without_family(modules, saved, encoder.config, lines, has_modules=has_modules)
    return LoadedModel(encoder, text, assumptions=tuple(lines))


def _head(file: OnnxFile, output: str, config_json: CheckpointJson, modules: Modules) -> HeadConfig | None:
    """Return the labels that config.json names, or numbered ones for as many as the output has."""
    width = file.outputs[output].shape[-1] if file.outputs[output].shape else None
    names = config_json.values.get("id2label")
    if isinstance(names, dict) and names:
        labels = tuple(str(names.get(str(number), "")) for number in range(len(names)))
    elif width:
        labels = unnamed_labels(width)
    else:
        return None
    return HeadConfig(labels, read_function(config_json, modules.cross_encoder, len(labels)))


def _limit(folder: Path, config_json: CheckpointJson, choices: OnnxChoices) -> tuple[int, str]:
    if choices.max_tokens is not None:
        return choices.max_tokens, "as --max-tokens says"
    tokenizer = CheckpointJson.read_if_present(folder / "tokenizer_config.json")
    for source, names in ((tokenizer, ("model_max_length",)), (config_json, _LIMITS)):
        for name in names:
            if (limit := source.limit(name)) is not None and limit < 1 << 20:
                return int(limit), f"{name} of {source.path.name}"
    raise CheckpointError(f"no file in {folder} says how long a sequence may be: give --max-tokens")
