"""Read checkpoint folders of the families that `families/model_types.py` lists.

A checkpoint is a folder saved by `transformers` (config.json, weights, tokenizer.json), alone or as the first
module of a `sentence-transformers` model (modules.json). `read_checkpoint` turns it into an encoder, a tokenizer and
prompts. A setting that the encoder cannot reproduce is an error that names the setting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers import Tokenizer
from torch import Tensor

from headwaiter_export.checkpoints.adapters import merge_adapter, task_prompts
from headwaiter_export.checkpoints.families.family import Family, TokenInput
from headwaiter_export.checkpoints.families.images import ImageInput
from headwaiter_export.checkpoints.families.model_types import (
    FAMILIES,
    FAMILIES_WITH_HEADS,
    FEATURE_FAMILIES,
    WORD_FAMILIES,
    family_of_fields,
)
from headwaiter_export.checkpoints.heads import (
    architectures_with_other_heads,
    check_is_encoder,
    read_head,
    unnamed_labels,
    with_head,
    without_head,
)
from headwaiter_export.checkpoints.image_format import read_image_format
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present
from headwaiter_export.checkpoints.m3 import M3_HEAD, check_m3, has_m3_layers, read_m3, with_m3_rules
from headwaiter_export.checkpoints.modules_json import (
    CONVERT_COLBERT,
    Modules,
    check_widths,
    read_modules,
    read_weights,
)
from headwaiter_export.checkpoints.multi_vector import TASK_FIELDS, with_tasks
from headwaiter_export.checkpoints.sound_format import read_sound_format
from headwaiter_export.checkpoints.texts import TextConfig, filled_texts, read_text, with_prompts
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer, read_checkpoint_tokenizer
from headwaiter_export.checkpoints.vocabulary_head import fold_vocabulary_head, read_vocabulary_head
from headwaiter_export.checkpoints.weights import check_precision, ignored_index, read_tensors, take_tensor
from headwaiter_export.checkpoints.word_scores import PairQuestion, fold_words, logit_score_ids, word_score_head
from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Activation, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_proto.encoder_pb2 import ImageFormat, SoundFormat
from headwaiter_proto.manifest_pb2 import HubSource
from headwaiter_proto.model_source import is_onnx
from headwaiter_server.runtime.bundle import MANIFEST

# Reads weights that have files of their own, given the shapes of all tensors in `Encoder.state_dict()`.
ReadWeights: TypeAlias = Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]]
# Makes an encoder of a configuration, of such weights, and of the images that it takes.
MakeEncoder: TypeAlias = Callable[[EncoderConfig, ReadWeights, ImageFormat | None], Encoder]
# Most layers of a model whose layers share tensors.
_MOST_SHARED_LAYERS = 1000
# The classes of custom code follow those of transformers.
_CUSTOM_KINDS = (
    "Config",
    "FlashConfig",
    "LoRA",
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


class NoFamilyError(CheckpointError):
    """The model type of a checkpoint belongs to no family, or its activation to none of the family's."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready for export.

    Attributes:
        encoder: the encoder in float32.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
        image: the images that the model takes; None if the model takes no images.
        sound: the sounds that the model takes; None if the model takes no samples of sounds.
        assumptions: what the export took for granted or left out, one line each.
        source: where the checkpoint came from; None if it did not come from a hub.
    """

    encoder: Encoder
    text: TextConfig | None
    image: ImageFormat | None = None
    sound: SoundFormat | None = None
    assumptions: tuple[str, ...] = ()
    source: HubSource | None = None


def read_checkpoint(
    folder: Path,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    question: PairQuestion | None = None,
    *,
    sparse: bool = False,
    route: str | None = None,
    adapter: str | None = None,
    make_encoder: MakeEncoder | None = None,
) -> LoadedModel:
    """Read a checkpoint folder.

    Args:
        folder: folder of a `transformers` or `sentence-transformers` model.
        pooling: pooling to use; None for the checkpoint's own, or, if the checkpoint names no pooling, none for a model
            with a head, and the default of the family for an encoder; a language model needs a pooling.
        normalize: whether to scale pooled vectors to unit length; None for the checkpoint's own choice, which is false
            unless modules.json lists Normalize.
        question: how to ask a language model for the score of a pair; None if the checkpoint says how, or is no such
            model.
        sparse: whether pooled vectors are those of SPLADE, also if the checkpoint does not say so.
        route: which route of a `sentence-transformers` model with a Router to read, such as "document".
        adapter: which adapter of a model with adapters of several tasks to merge into its weights, such as
            "retrieval.query"; None for none. If the checkpoint has a prompt of this name and no default prompt, it
            becomes the default prompt.
        make_encoder: makes the encoder of an ONNX file, for its configuration, instead of one with the weights of the
            checkpoint.

    Raises:
        NoFamilyError: no family has the model type, or the family lacks the activation; `library_model.py` may read
            the checkpoint.
        CheckpointError: a part is missing, or a setting cannot be reproduced; the message names it.
    """
    if is_onnx(str(folder)):
        raise CheckpointError(f"{folder} is an ONNX file: export it with headwaiter-export onnx {folder}")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the folder of a checkpoint, or OWNER/NAME on a hub")
    if is_present(folder / MANIFEST) and not is_present(folder / "config.json"):
        raise CheckpointError(f"{folder} is a bundle, not a checkpoint: serve it with headwaiter-server {folder}")
    has_modules = is_present(folder / "modules.json")
    if has_modules:
        modules = read_modules(folder, route)
    elif route is not None:
        raise CheckpointError(f"{folder} has no modules.json, so there is no route to choose: leave it out")
    else:
        modules = Modules(folder)
    if question is not None and modules != Modules(folder):
        raise CheckpointError(f"{folder / 'modules.json'} says what the model computes: leave the question out")
    sparse = sparse or modules.splade is not None
    if sparse and (modules.pooling or pooling):
        source = folder / "modules.json" if modules.pooling else "the caller"
        raise CheckpointError(
            f"{source} names the pooling {modules.pooling or pooling}, and the vectors are to be sparse: choose one of "
            "the two"
        )
    m3_folder = folder if has_m3_layers(folder) else None
    if m3_folder is not None:
        check_m3(folder, modules, Pooling.MAX if sparse or question else pooling, normalize=normalize)
        pooling, normalize = Pooling.CLS, True
    folder = modules.transformer
    if is_present(folder / "adapter_config.json"):
        raise CheckpointError(f"{folder} has adapter_config.json: merge the adapter into its model, with PEFT")
    config_json = CheckpointJson.read(folder / "config.json")
    # With a pooling, sentence-transformers loads the encoder alone.
    family = _read_family(config_json, with_head=modules.pooling is None, scores_words=question is not None)
    if modules.pools_itself and not family.config_fields:
        raise CheckpointError(
            f"{folder} has no encoders of images and texts, as in CLIP: add a Pooling to modules.json"
        )
    if adapter is not None and not family.has_adapters:
        raise CheckpointError(f"{folder} has no adapters of several tasks: leave the adapter out")
    if m3_folder is not None and not isinstance(family.input, TokenInput):
        raise CheckpointError(f"{folder} has the layers of FlagEmbedding, which take texts: remove their two files")
    whole_json, config_json = config_json, family.encoder_json(config_json)
    use = _read_use(whole_json, config_json, family, modules, pooling, sparse=sparse, m3=m3_folder, question=question)
    family, pooling, head, assumptions = use.family, use.pooling, use.head, list(use.assumptions)
    is_own_pooling = modules.pooling is None and pooling is family.default_pooling
    own_modules = family.own_modules(whole_json, config_json) if is_own_pooling else ()
    if pooling is Pooling.ATTENTION and not is_own_pooling:
        raise CheckpointError(f"{folder} has no attention pooling: choose another pooling")
    scales_again = bool(normalize)
    if normalize is None:  # The caller leaves the choice to the checkpoint.
        normalize = modules.normalize and pooling is not Pooling.NONE
    after_pooling = modules.after_pooling if pooling is not Pooling.NONE else ()
    row_modules = tuple(each.module for each in modules.row_modules)
    read_added: ReadWeights = partial(read_weights, modules)
    if m3_folder is not None:
        m3 = read_m3(m3_folder, config_json.size(family.size_fields["d_model"]))
        row_modules, read_added = m3.row_modules, lambda _: m3.weights
    config = _encoder_config(
        config_json,
        family,
        pooling=pooling,
        concatenated=modules.concatenated if pooling is Pooling.CONCATENATED else (),
        after_pooling=own_modules or tuple(each.module for each in after_pooling),
        row_modules=row_modules,
        normalize=normalize,
        vocabulary_head=use.vocabulary_head,
        head=head,
    )
    check_widths(after_pooling, config.pooling_width)
    check_widths(modules.row_modules, config.width)
    if modules.truncated_width is not None and pooling is not Pooling.NONE:
        config = _truncated(config, modules.truncated_width, normalize=scales_again, assumptions=assumptions)
    saved = read_checkpoint_tokenizer(folder, config_json) if isinstance(family.input, TokenInput) else None
    if head and not m3_folder:
        config = replace(config, token_types=_token_types(config_json, family, saved))
    if config.decodes_rows:
        assumptions.append("hidden rows are those of the decoder, whose input is the text moved by one token")
    assumptions += _input_assumptions(whole_json, config_json, family, config)
    image = None
    if isinstance(family.input, ImageInput):
        image = read_image_format(folder, config_json)
        config = family.input.resized(config, config_json, image)
        if not image.HasField("preparation"):
            assumptions.append("the export knows no image processor of the checkpoint: callers must prepare images")
    sound = read_sound_format(folder, config.waveform) if config.waveform else None
    if sound is not None:
        scaled = ", scaled to mean 0 and variance 1" if sound.normalized else ""
        assumptions.append(f"sounds have {sound.sampling_rate_hz:,} samples a second{scaled}")
    chat_settings = modules.cross_encoder if modules.logit_score is not None else None
    text = read_text(
        folder,
        saved,
        config,
        assumptions,
        chat_settings,
        question.template if question else None,
        TASK_FIELDS if modules.mask else (),
        "image" if image is not None else "audio",
        has_modules=has_modules,
        pools_itself=modules.pools_itself,
    )
    if text is None and modules.mask is not None:
        raise CheckpointError(f"{folder} has no tokenizer.json: a model of several vectors needs the tokenizer")
    prompts_json = task_prompts(config_json, modules.prompts) if family.has_adapters else modules.prompts
    if text is not None and saved is not None and prompts_json is not None:
        text = with_prompts(text, prompts_json, route, adapter, None if modules.pools_prompt else saved)
        if modules.mask is not None:
            text, config = with_tasks(text, config, saved, modules.mask, family, route)
        if text.pooling_skips_prompt and (config.after_pooling or config.concatenated):
            other = "the model has several poolings" if config.concatenated else "the vectors have truncate_dim"
            other = f"{after_pooling[0].folder.name} follows" if after_pooling else other
            raise CheckpointError(
                f"the pooling has include_prompt False, and {other}: the export supports only one of the two; remove "
                "the prompts to serve texts without prompts"
            )
    if text is not None and saved is not None and family.fills_texts:
        if modules != Modules(folder):
            raise CheckpointError(
                f"{folder} has texts that must be filled up, which sentence-transformers does not: export this folder "
                "without modules.json"
            )
        text = filled_texts(text, saved)
        assumptions.append(f"padding tokens fill up texts to {text.max_tokens} tokens, as in the training of SigLIP")
    if m3_folder is not None:
        text = with_m3_rules(text, saved, folder)
        if text.default_prompt:
            assumptions.append(f"the prompt {text.default_prompt!r}, which FlagEmbedding ignores, is put before texts")
    if text is not None:
        takes_end = head.poolings == (Pooling.LAST,) if head else is_own_pooling and pooling is Pooling.LAST
        if family.end_id_field and takes_end:
            _check_end_token(text, config_json, family, "correct one of the two" if head else "choose a pooling")
    words = None
    if modules.logit_score is not None:
        words = logit_score_ids(modules.logit_score, config.vocabulary_size)
    elif question is not None:
        if text is None:
            raise CheckpointError(f"{folder} has no tokenizer.json: a question needs the tokenizer")
        words = question.word_ids(Tokenizer.from_str(text.tokenizer))
        less = "" if question.no is None else f" less that of {question.no!r}"
        assumptions.append(f"a pair is scored by the logit of {question.yes!r}{less}")
    if make_encoder is not None:
        encoder = make_encoder(config, read_added, image)
    else:
        encoder = _load_encoder(folder, config_json, family, config, read_added, assumptions, words, adapter)
    return LoadedModel(encoder, text, image, sound, tuple(assumptions))


@dataclass(frozen=True)
class _Use:
    """What a model computes after its layers.

    Attributes:
        family: the family, with the modules of a head if the model has one.
        pooling: how hidden rows become one vector.
        head: the head of labels.
        vocabulary_head: the head of sparse vectors.
        assumptions: lines for `LoadedModel.assumptions`.
    """

    family: Family
    pooling: Pooling
    head: HeadConfig | None = None
    vocabulary_head: VocabularyHeadConfig | None = None
    assumptions: tuple[str, ...] = ()


def _read_use(
    whole_json: CheckpointJson,
    config_json: CheckpointJson,
    family: Family,
    modules: Modules,
    pooling: Pooling | None,
    *,
    sparse: bool,
    m3: Path | None,
    question: PairQuestion | None,
) -> _Use:
    """Decide what a model computes after its layers: vectors of one of several kinds, or scores."""
    if sparse:
        vocabulary_head, family = read_vocabulary_head(config_json, family, modules.splade)
        line = "pooled vectors are sparse: they weigh each token of the vocabulary"
        return _Use(family, Pooling.MAX, vocabulary_head=vocabulary_head, assumptions=(line,))
    if modules.mask is not None:
        return _Use(without_head(config_json, family), Pooling.NONE, assumptions=_several_vectors_lines(modules))
    if m3 is not None:
        line = "beside its pooled vector, a text has a sparse vector, and a vector of each token"
        return _Use(without_head(config_json, family), Pooling.CLS, M3_HEAD, assumptions=(line,))
    head = None
    if modules.pooling is not None:
        # sentence-transformers loads the encoder without its head.
        family = without_head(config_json, family)
    elif modules.logit_score is not None or question is not None:
        head = word_score_head(whole_json, family, modules.cross_encoder)
        family = with_head(family, head)
    elif head := read_head(config_json, family, modules.cross_encoder):
        family = with_head(family, head)
    elif pooling is None:
        check_is_encoder(whole_json, modules.cross_encoder, family.default_pooling)
    lines = _pooling_assumptions(whole_json, family, head, chosen=pooling, named=modules.pooling)
    default = Pooling.NONE if head else family.default_pooling
    return _Use(family, pooling or modules.pooling or default, head, assumptions=tuple(lines))


def _several_vectors_lines(modules: Modules) -> tuple[str, ...]:
    lines = ["each hidden row is a vector; without a default prompt, texts without a prompt are documents"]
    if modules.prompts is not None and modules.prompts.values.get("similarity_fn_name") == "meanmaxsim":
        lines.append("the checkpoint divides the scores of MaxSim by the number of the query's vectors")
    return tuple(lines)


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


def _pooling_assumptions(
    whole_json: CheckpointJson,
    family: Family,
    head: HeadConfig | None,
    *,
    chosen: Pooling | None,
    named: Pooling | None,
) -> list[str]:
    """Return lines about the head and the pooling, which a user chose, or a file of the checkpoint named."""
    if head:
        unnamed = head.labels == unnamed_labels(len(head.labels))
        labels = "labels without names" if unnamed else "named labels"
        lines = [f"{head.function} turns logits into scores, for {len(head.labels)} {labels}"]
        return lines if chosen else [*lines, "without --pooling, requests of pooled vectors must name a pooling"]
    lines = [f"the head of {name} is left out" for name in architectures_with_other_heads(whole_json)]
    if chosen and named and chosen is not named:
        lines.append(f"--pooling {chosen} replaces the pooling of modules.json, {named}")
    if not chosen and not named:
        lines.append(
            f"the checkpoint names no pooling: {family.default_pooling}, as usual for "
            f"{whole_json.values['model_type']}, of unit length only with --normalize; --pooling chooses another"
        )
    return lines


def _input_assumptions(
    whole_json: CheckpointJson, config_json: CheckpointJson, family: Family, config: EncoderConfig
) -> list[str]:
    """Return lines about the length and the token types of sequences."""
    lines = []
    if "n_positions" in family.default_values.keys() - whole_json.values.keys():
        lines.append(f"config.json has no n_positions: sequences have at most {config.max_tokens} tokens")
    types = family.input.token_types(config_json) if isinstance(family.input, TokenInput) else 0
    if types > config.token_types:
        lines.append(f"all tokens have type 0, one of {types} token types")
    return lines


def _read_family(config_json: CheckpointJson, *, with_head: bool, scores_words: bool) -> Family:
    """Return the family of a checkpoint, or raise CheckpointError if the checkpoint is not a supported encoder."""
    families = {**FAMILIES, **FEATURE_FAMILIES}
    try:
        family = config_json.choice("model_type", families)
    except CheckpointError as error:
        raise NoFamilyError(str(error)) from None
    family = family_of_fields(config_json) or family
    if "HF_ColBERT" in config_json.strings("architectures"):
        raise config_json.error("architectures", CONVERT_COLBERT)
    for architecture in config_json.strings("architectures") if with_head else ():
        family = FAMILIES_WITH_HEADS.get((config_json.values["model_type"], architecture), family)
    if scores_words:
        family = WORD_FAMILIES.get(config_json.values["model_type"], family)
    # The last two name other files, which transformers then reads instead.
    config_json.require(dict.fromkeys(("quantization_config", "configuration_files", "transformers_weights")))
    code = config_json.values.get("auto_map") or {}
    if not family.custom_classes or not isinstance(code, dict):
        config_json.require({"auto_map": None})
    elif not all(_is_known_class(name, family.custom_classes) for name in code.values()):
        raise config_json.error("auto_map", f"the export knows only the code of classes {family.custom_classes}…")
    if config_json.values.get("is_decoder"):
        raise CheckpointError("config.json has is_decoder: only encoders are supported")
    # Families with rotary positions ignore this field.
    learned = family.fixed_fields.get("positions", Positions.LEARNED) is Positions.LEARNED
    if learned and config_json.values.get("position_embedding_type", "absolute") != "absolute":
        raise config_json.error("position_embedding_type", "only 'absolute' is supported")
    return family


def _is_known_class(name: object, prefix: str) -> bool:
    """Return whether a name in `auto_map`, such as "owner/repository--module.NewModel", ends with a known class."""
    return isinstance(name, str) and name.rpartition(".")[2] in {prefix + kind for kind in _CUSTOM_KINDS}


def _token_types(config_json: CheckpointJson, family: Family, saved: CheckpointTokenizer | None) -> int:
    """Return the number of token types that sequences of a checkpoint can have; 0 if all tokens have the same type."""
    if not isinstance(family.input, TokenInput) or (saved is not None and not saved.gives_token_types):
        return 0
    return family.input.token_types(config_json)


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


def _load_encoder(
    folder: Path,
    config_json: CheckpointJson,
    family: Family,
    config: EncoderConfig,
    read_added: ReadWeights,
    assumptions: list[str],
    words: tuple[int, int | None] | None = None,
    adapter: str | None = None,
) -> Encoder:
    """Read the weights, rename them as in `Encoder.state_dict()`, and add those that have files of their own.

    A line about the tensors that are left out is added to `assumptions`.
    """
    if line := ignored_index(folder):
        assumptions.append(line)
    tensors, full_names = dict[str, Tensor](), dict[str, str]()
    for full_name, tensor in read_tensors(folder).items():
        if full_name.endswith(family.ignored_suffixes):
            continue
        name = full_name.removeprefix(family.outer_prefix).removeprefix(family.tensor_prefix)
        # Checkpoints converted from TensorFlow keep its names for the parameters of LayerNorm.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in tensors and not torch.equal(tensors[name], tensor):
            raise CheckpointError(
                f"the checkpoint has two tensors for {name}, {full_names[name]} and {full_name}: remove one"
            )
        tensors[name], full_names[name] = tensor, full_name
    for name, tensor in tensors.items():
        if not name.startswith(family.ignored_prefixes):
            check_precision(name, tensor)
    if words is not None:
        fold_words(tensors, config_json, words, config)
    if family.has_adapters:
        names = merge_adapter(tensors, config_json, adapter, family.ignored_prefixes)
        if names and adapter is None:
            assumptions.append(f"the adapters {', '.join(names)} are left out; --adapter merges one of them")
    config = family.read_stored(tensors, config)
    family.input.fold_tensors(tensors, config_json, config)
    if config.vocabulary_head is not None:
        fold_vocabulary_head(tensors, config_json, family)
    # Before the modules are made: a wrong number may be a million.
    layers = config.layers + (config.decoder.layers if config.decoder else 0)
    if layers > (_MOST_SHARED_LAYERS if family.shared_module_names else len(tensors)):
        raise CheckpointError(
            f"config.json has {layers} layers, but the checkpoint {len(tensors)} tensors: correct config.json"
        )
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Encoder(config).state_dict().items()}
    weights = read_added(shapes)
    taken: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name in weights:
            continue
        source = family.tensor_name(name)
        if source not in taken:
            taken[source] = take_tensor(tensors, source, shape)
        weights[name] = taken[source]
    _fold_layer_scales(weights, tensors, family, config)
    for name in tensors:
        if not name.startswith(family.ignored_prefixes):
            raise CheckpointError(
                f"the checkpoint has tensor {name}, which config.json does not "
                "describe: correct config.json, or remove the tensor if hidden rows do not depend on it"
            )
    left_out = {next(prefix for prefix in family.ignored_prefixes if name.startswith(prefix)) for name in tensors}
    left_out -= {"embeddings.position_ids"}  # the numbers 0, 1, 2, …
    if left_out:
        assumptions.append(f"hidden rows do not depend on tensors {'…, '.join(sorted(left_out))}…: they are left out")
    return Encoder.with_weights(config, weights)


def _fold_layer_scales(
    weights: dict[str, Tensor], tensors: dict[str, Tensor], family: Family, config: EncoderConfig
) -> None:
    """Remove the scales of all layers from a checkpoint's `tensors`, and multiply them into an encoder's `weights`.

    LayerScale multiplies each column of a block's output by a learned number, x + λ · block(x)
    (https://arxiv.org/abs/2103.17239, section 2). A block ends with a linear layer, so λ · (W y + b) = (λ W) y + λ b.
    """
    for layer in range(config.layers):
        for module, scale_name in family.layer_scales.items():
            scale = take_tensor(tensors, f"{family.layer_prefix}.{layer}.{scale_name}", (config.d_model,))
            weight, bias = (f"layers.{layer}.{module}.{kind}" for kind in ("weight", "bias"))
            weights[weight] = weights[weight] * scale[:, None]
            if bias in weights:
                weights[bias] = weights[bias] * scale
