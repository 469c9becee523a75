"""The second stage of reading a checkpoint: decide what its encoder takes and computes, before weights are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer
from torch import Tensor

from headwaiter_export.checkpoints.adapters import task_prompts
from headwaiter_export.checkpoints.chosen_family import NoFamilyError, choose_family
from headwaiter_export.checkpoints.families.family import Family, TokenInput
from headwaiter_export.checkpoints.families.images import ImageInput
from headwaiter_export.checkpoints.files import CheckpointFiles
from headwaiter_export.checkpoints.image_format import read_image_format
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.m3 import check_m3, read_m3, with_m3_rules
from headwaiter_export.checkpoints.modules_json import check_widths, read_weights
from headwaiter_export.checkpoints.multi_vector import TASK_FIELDS, with_tasks
from headwaiter_export.checkpoints.outputs import Choices, Outputs, choose_outputs
from headwaiter_export.checkpoints.sound_format import read_sound_format
from headwaiter_export.checkpoints.texts import TextConfig, filled_texts, read_text, with_prompts
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer, read_checkpoint_tokenizer
from headwaiter_export.checkpoints.word_scores import logit_score_ids
from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Activation, Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_proto.encoder_pb2 import ImageFormat, SoundFormat

# Reads weights that have files of their own, given the shapes of all tensors in `Encoder.state_dict()`.
ReadWeights: TypeAlias = Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]]


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelPlan:
    """What a model takes and computes.

    Attributes:
        folder: folder of the weights.
        config_json: the part of config.json that describes the encoder.
        family: the family, with the modules of a head if the model has one.
        config: the configuration of the encoder.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
        image: the images that the model takes; None if the model takes no images.
        sound: the sounds that the model takes; None if the model takes no samples of sounds.
        read_added: reads the weights that have files of their own.
        word_ids: the ids of the word whose logit is the score of a pair, and of the word whose logit is subtracted, if
            there is one; None for other models.
        adapter: the adapter to merge into the weights; None for none.
        assumptions: what the export took for granted or left out.
    """

    folder: Path
    config_json: CheckpointJson
    family: Family
    config: EncoderConfig
    text: TextConfig | None
    image: ImageFormat | None
    sound: SoundFormat | None
    read_added: ReadWeights
    word_ids: tuple[int, int | None] | None
    adapter: str | None
    assumptions: tuple[str, ...]


def plan_model(files: CheckpointFiles, choices: Choices) -> ModelPlan:
    """Decide what the model of a checkpoint takes and computes.

    Raises:
        NoFamilyError: no family has the model type, or the family lacks the activation.
        CheckpointError: a setting or a choice cannot be reproduced.
    """
    choices = _settled_choices(files, choices)
    # With a pooling, sentence-transformers loads the encoder alone.
    with_head, scores_words = files.modules.pooling is None, choices.question is not None
    family = choose_family(files.config_json, with_head=with_head, scores_words=scores_words)
    _check_family(files, family, choices)
    config_json = family.encoder_json(files.config_json)
    outputs = choose_outputs(files, family, config_json, choices)
    family, assumptions = outputs.family, [*outputs.assumptions]
    config, read_added = _plan_encoder(files, config_json, outputs, choices, assumptions)
    folder = files.modules.transformer
    saved = read_checkpoint_tokenizer(folder, config_json) if isinstance(family.input, TokenInput) else None
    if outputs.head and not files.has_m3_layers:
        config = replace(config, token_types=_token_types(config_json, family, saved))
    assumptions += _input_lines(files.config_json, config_json, family, config)
    image, sound = None, None
    if isinstance(family.input, ImageInput):
        image = read_image_format(folder, config_json)
        config = family.input.resized(config, config_json, image)
        if not image.HasField("preparation"):
            assumptions.append("the export knows no image processor of the checkpoint: callers must prepare images")
    if config.waveform:
        sound = read_sound_format(folder, config.waveform)
        scaled = ", scaled to mean 0 and variance 1" if sound.normalized else ""
        assumptions.append(f"sounds have {sound.sampling_rate_hz:,} samples a second{scaled}")
    text, config = _plan_texts(files, config_json, outputs, config, saved, choices, assumptions)
    word_ids = _word_ids(files, config, text, choices, assumptions)
    return ModelPlan(
        folder=folder,
        config_json=config_json,
        family=family,
        config=config,
        text=text,
        image=image,
        sound=sound,
        read_added=read_added,
        word_ids=word_ids,
        adapter=choices.adapter,
        assumptions=tuple(assumptions),
    )


def _settled_choices(files: CheckpointFiles, choices: Choices) -> Choices:
    """Return the caller's choices, completed by what the files decide; check that the files agree with the caller."""
    modules, folder = files.modules, files.folder
    if choices.question is not None and files.has_modules:
        raise CheckpointError(f"{folder / 'modules.json'} says what the model computes: leave the question out")
    if modules.mask is not None and (choices.pooling not in (None, Pooling.NONE) or choices.sparse):
        raise CheckpointError(f"{folder / 'modules.json'} makes a vector of each token: leave the pooling out")
    sparse = choices.sparse or modules.splade is not None
    if sparse and (modules.pooling or choices.pooling):
        source = folder / "modules.json" if modules.pooling else "the caller"
        pooling = modules.pooling or choices.pooling
        raise CheckpointError(
            f"{source} names the pooling {pooling}, and the vectors are to be sparse: choose one of the two"
        )
    choices = replace(choices, sparse=sparse)
    if not files.has_m3_layers:
        return choices
    check_m3(
        folder, modules, Pooling.MAX if sparse or choices.question else choices.pooling, normalize=choices.normalize
    )
    return replace(choices, pooling=Pooling.CLS, normalize=True)


def _check_family(files: CheckpointFiles, family: Family, choices: Choices) -> None:
    """Check that a family has what the modules and the choices need."""
    folder = files.modules.transformer
    if files.modules.pools_itself and not family.config_fields:
        raise CheckpointError(
            f"{folder} has no encoders of images and texts, as in CLIP: add a Pooling to modules.json"
        )
    if choices.adapter is not None and not family.has_adapters:
        raise CheckpointError(f"{folder} has no adapters of several tasks: leave the adapter out")
    if files.has_m3_layers and not isinstance(family.input, TokenInput):
        raise CheckpointError(f"{folder} has the layers of FlagEmbedding, which take texts: remove their two files")


def _pooling_is_of_family(files: CheckpointFiles, outputs: Outputs) -> bool:
    """Return whether the pooling is that of the family, with the modules after it."""
    return files.modules.pooling is None and outputs.pooling is outputs.family.default_pooling


def _plan_encoder(
    files: CheckpointFiles, config_json: CheckpointJson, outputs: Outputs, choices: Choices, assumptions: list[str]
) -> tuple[EncoderConfig, ReadWeights]:
    """Return the configuration of the encoder, and the function that reads the weights of added modules."""
    modules, family, pooling = files.modules, outputs.family, outputs.pooling
    own_modules = family.own_modules(files.config_json, config_json) if _pooling_is_of_family(files, outputs) else ()
    if pooling is Pooling.ATTENTION and not _pooling_is_of_family(files, outputs):
        raise CheckpointError(f"{files.modules.transformer} has no attention pooling: choose another pooling")
    after_pooling = modules.after_pooling if pooling is not Pooling.NONE else ()
    row_modules = tuple(each.module for each in modules.row_modules)
    read_added: ReadWeights = partial(read_weights, modules)
    if files.has_m3_layers:
        m3 = read_m3(files.folder, config_json.size(family.size_fields["d_model"]))
        row_modules, read_added = m3.row_modules, lambda _: m3.weights
    normalize = choices.normalize
    if normalize is None:  # The caller leaves the choice to the checkpoint.
        normalize = modules.normalize and pooling is not Pooling.NONE
    config = _encoder_config(
        config_json,
        family,
        pooling=pooling,
        concatenated=modules.concatenated if pooling is Pooling.CONCATENATED else (),
        after_pooling=own_modules or tuple(each.module for each in after_pooling),
        row_modules=row_modules,
        normalize=normalize,
        vocabulary_head=outputs.vocabulary_head,
        head=outputs.head,
    )
    check_widths(after_pooling, config.pooling_width)
    check_widths(modules.row_modules, config.width)
    if modules.truncated_width is not None and pooling is not Pooling.NONE:
        config = _truncated(config, modules.truncated_width, normalize=bool(choices.normalize), assumptions=assumptions)
    return config, read_added


def _encoder_config(config_json: CheckpointJson, family: Family, **decided: Any) -> EncoderConfig:
    config_json.require(family.required_fields)
    is_causal = config_json.values.get("is_causal")
    if is_causal is not None and is_causal not in family.is_causal:
        raise config_json.error("is_causal", "the export cannot apply it to this family")
    choices: dict[str, Any] = {
        **family.fixed_fields,
        **family.input.sizes(config_json),
        **{name: config_json.size(field) for name, field in family.size_fields.items()},
        **{
            name: config_json.size(field)
            for name, field in family.optional_size_fields.items()
            if field in config_json.values
        },
        **{
            name: config_json.boolean(field)
            for name, field in family.boolean_fields.items()
            if field in config_json.values
        },
        "activation": _read_activation(config_json, family),
        "norm_eps": family.norm_eps or config_json.values[family.norm_eps_field],
    }
    try:
        return EncoderConfig(**choices, **decided)
    except ConfigError as error:
        raise CheckpointError(f"{config_json.path} does not describe a supported encoder: {error}") from None


def _read_activation(config_json: CheckpointJson, family: Family) -> Activation:
    """Return the activation; one that the family does not know may be known to the module of transformers."""
    try:
        return config_json.choice(family.activation_field, family.activations)
    except CheckpointError as error:
        if isinstance(family.input, TokenInput | ImageInput):
            raise NoFamilyError(str(error)) from None
        raise


def _truncated(config: EncoderConfig, width: int, *, normalize: bool, assumptions: list[str]) -> EncoderConfig:
    """Return the configuration of a model that keeps the first values of its vectors, scaled to unit length before.

    `normalize` is whether the shorter vectors are scaled again, which sentence-transformers does only when asked. A
    line about the truncation is added to `assumptions`.
    """
    if width >= config.pooled_width:
        return config
    shorter = ", of less than unit length; --normalize scales them again" if config.normalize and not normalize else ""
    assumptions.append(f"vectors keep their first {width} of {config.pooled_width} values (truncate_dim){shorter}")
    scaled = [PooledModule(kind=ModuleKind.NORMALIZE)] if config.normalize else []
    truncated = PooledModule(kind=ModuleKind.TRUNCATE, width=width)
    return replace(config, after_pooling=(*config.after_pooling, *scaled, truncated), normalize=normalize)


def _token_types(config_json: CheckpointJson, family: Family, saved: CheckpointTokenizer | None) -> int:
    """Return the number of token types that sequences of a checkpoint can have; 0 if all tokens have the same type."""
    if not isinstance(family.input, TokenInput) or (saved is not None and not saved.gives_token_types):
        return 0
    return family.input.token_types(config_json)


def _input_lines(
    whole_json: CheckpointJson, config_json: CheckpointJson, family: Family, config: EncoderConfig
) -> list[str]:
    """Return assumptions about the rows, the length and the token types of sequences."""
    assumptions = []
    if config.decodes_rows:
        assumptions.append("hidden rows are those of the decoder, whose input is the text moved by one token")
    if "n_positions" in family.default_values.keys() - whole_json.values.keys():
        assumptions.append(f"config.json has no n_positions: sequences have at most {config.max_tokens} tokens")
    types = family.input.token_types(config_json) if isinstance(family.input, TokenInput) else 0
    if types > config.token_types:
        assumptions.append(f"all tokens have type 0, one of {types} token types")
    return assumptions


def _plan_texts(
    files: CheckpointFiles,
    config_json: CheckpointJson,
    outputs: Outputs,
    config: EncoderConfig,
    saved: CheckpointTokenizer | None,
    choices: Choices,
    assumptions: list[str],
) -> tuple[TextConfig | None, EncoderConfig]:
    """Return the tokenizer with its limit and prompts, if there is one, and the configuration of the encoder."""
    modules, family, folder = files.modules, outputs.family, files.modules.transformer
    text = read_text(
        folder,
        saved,
        config,
        assumptions,
        modules.cross_encoder if modules.logit_score is not None else None,
        choices.question.template if choices.question else None,
        TASK_FIELDS if modules.mask else (),
        "image" if isinstance(family.input, ImageInput) else "audio",
        has_modules=files.has_modules,
        pools_itself=modules.pools_itself,
    )
    if text is None or saved is None:
        needs = {
            "a question": choices.question is not None,
            "a model with the layers of FlagEmbedding": files.has_m3_layers,
            "a model of several vectors": modules.mask is not None,
        }
        if kinds := [kind for kind, applies in needs.items() if applies]:
            raise CheckpointError(f"{folder} has no tokenizer.json: {kinds[0]} needs the tokenizer")
        return None, config
    prompts_json = task_prompts(config_json, modules.prompts) if family.has_adapters else modules.prompts
    if prompts_json is not None:
        unpooled = None if modules.pools_prompt else saved
        text = with_prompts(text, prompts_json, choices.route, choices.adapter, unpooled)
        if modules.mask is not None:
            text, config = with_tasks(text, config, saved, modules.mask, family, choices.route)
        _check_unpooled_prompts(files, text, config)
    if family.fills_texts:
        if files.has_modules:
            raise CheckpointError(
                f"{folder} has texts that must be filled up, which sentence-transformers does not: export this folder "
                "without modules.json"
            )
        text = filled_texts(text, saved)
        assumptions.append(f"padding tokens fill up texts to {text.max_tokens} tokens, as in the training of SigLIP")
    if files.has_m3_layers:
        text = with_m3_rules(text, saved)
        if text.default_prompt:
            assumptions.append(f"the prompt {text.default_prompt!r}, which FlagEmbedding ignores, is put before texts")
    takes_end = outputs.pooling is Pooling.LAST and _pooling_is_of_family(files, outputs)
    if outputs.head:
        takes_end = outputs.head.poolings == (Pooling.LAST,)
    if family.end_id_field and takes_end:
        _check_end_token(text, config_json, family, "correct one of the two" if outputs.head else "choose a pooling")
    return text, config


def _check_unpooled_prompts(files: CheckpointFiles, text: TextConfig, config: EncoderConfig) -> None:
    """Check that a pooling that leaves out the rows of prompts is alone."""
    if not text.pooling_skips_prompt or not (config.after_pooling or config.concatenated):
        return
    other = "the model has several poolings" if config.concatenated else "the vectors have truncate_dim"
    if files.modules.after_pooling:
        other = f"{files.modules.after_pooling[0].folder.name} follows"
    raise CheckpointError(
        f"the pooling has include_prompt False, and {other}: the export supports only one of the two; remove the "
        "prompts to serve texts without prompts"
    )


def _check_end_token(text: TextConfig, config_json: CheckpointJson, family: Family, remedy: str) -> None:
    """Check that texts end with the token whose row transformers takes: a server takes the last row."""
    taken = config_json.values[family.end_id_field]
    if taken == family.largest_id_value:
        taken = text.largest_id()
    for last in text.last_ids():
        if taken != last:
            raise config_json.error(
                family.end_id_field,
                f"transformers takes the row of token {taken}, and the tokenizer ends texts with {last}: {remedy}",
            )


def _word_ids(
    files: CheckpointFiles, config: EncoderConfig, text: TextConfig | None, choices: Choices, assumptions: list[str]
) -> tuple[int, int | None] | None:
    """Return `ModelPlan.word_ids`."""
    if files.modules.logit_score is not None:
        return logit_score_ids(files.modules.logit_score, config.vocabulary_size)
    if choices.question is None:
        return None
    assert text is not None  # `_plan_texts` requires it.
    yes, no = choices.question.yes, choices.question.no
    assumptions.append(f"a pair is scored by the logit of {yes!r}" + ("" if no is None else f" less that of {no!r}"))
    return choices.question.word_ids(Tokenizer.from_str(text.tokenizer))
