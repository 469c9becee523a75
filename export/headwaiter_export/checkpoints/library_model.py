"""Read a checkpoint of a model type without a family: a module of transformers, the library, computes its results.

The tokenizer, the pooling, the modules after it and the labels of a head are read as for the families.
"""

import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwaiter_export.checkpoints.heads import check_is_encoder, read_library_head, setfit_lines
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present, refuse_errors
from headwaiter_export.checkpoints.library_experts import run_all_experts
from headwaiter_export.checkpoints.library_images import has_texts, read_image_module
from headwaiter_export.checkpoints.modules_json import (
    Modules,
    check_are_usual,
    check_widths,
    read_modules,
    read_weights,
)
from headwaiter_export.checkpoints.texts import TextConfig, read_text, with_prompts
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import (
    CheckpointTokenizer,
    read_checkpoint_tokenizer,
    without_messages,
)
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.own_module import ModuleEncoder, call_module
from headwaiter_proto.encoder_pb2 import ImageFormat

# The fields of configurations that limit the positions of a sequence.
_POSITION_FIELDS = ("max_position_embeddings", "n_positions")
# Most tokens of a model without such a limit.
_DEFAULT_TOKENS = 512
# Most tokens unless the caller chooses: the export runs the longest sequence, whose attention takes n² numbers.
_MOST_TOKENS = 8192
# Tensors that no result depends on.
_UNUSED = ("pooler.", "embeddings.position_ids")


@dataclass(frozen=True, eq=False)
class LibraryModel:
    """A model whose module is one of transformers.

    Attributes:
        module: maps token ids [B, N] and a mask to rows or logits.
        head: the labels of a module that gives logits.
        choices: what the module takes, and what follows it, as in `ModuleEncoder.of`.
        assumptions: what the export took for granted or left out, one line each.
        image: the images that the module takes; None for token ids.
    """

    module: nn.Module
    head: HeadConfig | None
    choices: dict[str, Any]
    assumptions: list[str]
    _modules: Modules
    _tokenizer: CheckpointTokenizer | None
    _has_modules: bool
    image: ImageFormat | None = None
    _texts: list[TextConfig | None] = field(default_factory=list)

    def finish(self, encoder: ModuleEncoder) -> TextConfig | None:
        """Give an encoder of the module the weights of the modules after its pooling; return the tokenizer.

        Raises:
            CheckpointError: a file of these modules or of the tokenizer cannot be read or does not fit.
        """
        check_widths(self._modules.after_pooling, encoder.config.pooling_width)
        shapes = {name: tuple(tensor.shape) for name, tensor in encoder.after_pooling.state_dict().items()}
        weights = read_weights(self._modules, {f"after_pooling.{name}": shape for name, shape in shapes.items()})
        encoder.load_state_dict(weights, strict=False)
        if not encoder.config.takes_tokens:
            return None
        if not self._texts:
            text = read_text_without_family(
                self._modules, self._tokenizer, encoder.config, self.assumptions, has_modules=self._has_modules
            )
            self._texts.append(text)
        return self._texts[0]


def read_text_without_family(
    modules: Modules,
    saved: CheckpointTokenizer | None,
    config: EncoderConfig,
    assumptions: list[str],
    *,
    has_modules: bool,
) -> TextConfig | None:
    """Read the tokenizer and the prompts of a model without a family; the arguments are those of `read_text`."""
    folder = modules.transformer
    text = read_text(folder, saved, config, assumptions, has_modules=has_modules)
    if text is None or modules.prompts is None:
        return text
    text = with_prompts(text, modules.prompts, unpooled=None if modules.pools_prompt else saved)
    if text.pooling_skips_prompt and (config.after_pooling or config.concatenated):
        raise CheckpointError(
            f"the pooling of {folder.parent} has include_prompt False, and other modules or poolings beside it: "
            "remove the prompts to serve texts without prompts"
        )
    return text


def read_library_model(
    folder: Path,
    no_family: Exception,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
) -> LibraryModel:
    """Read a checkpoint whose model type transformers knows; `pooling` and `normalize` as in `read_checkpoint`.

    `no_family` is the error of `read_checkpoint`, which is raised if transformers does not know the type either.
    `max_tokens` are the most tokens of a sequence; None for as many as config.json allows, but at most 8,192.

    Raises:
        CheckpointError: transformers cannot read the checkpoint, or a setting is not supported.
        ConfigError: the model gives logits alone, and a pooling or unit length was chosen.
    """
    has_modules = is_present(folder / "modules.json")
    modules = read_modules(folder) if has_modules else Modules(folder)
    folder = modules.transformer
    config_json = CheckpointJson.read(folder / "config.json")
    kind = config_json.values.get("model_type")
    if not isinstance(kind, str):
        raise no_family
    check_are_usual(modules, f"{folder}, of the type {kind},")
    # Code of the checkpoint never runs, and the last two fields name other files.
    config_json.require(
        dict.fromkeys(("auto_map", "quantization_config", "configuration_files", "transformers_weights"))
    )
    is_encoder = set(config_json.strings("architectures")) <= _encoders(kind)
    head = None if modules.pooling or is_encoder else read_library_head(config_json, modules.cross_encoder)
    if head is None and pooling is None and modules.pooling is None:
        check_is_encoder(config_json, modules.cross_encoder, Pooling.MEAN)
    if head is not None and (pooling not in (None, Pooling.NONE) or normalize):
        raise ConfigError(
            f"{folder} has a head, and a model of the type {kind}, which has no family of its own, gives its logits "
            "alone: leave --pooling and --normalize out"
        )
    if not is_known_type(kind):
        raise no_family
    module: Any = load_module(folder, config_json, head)
    if not _takes_images(module) and not isinstance(_embedding(module), nn.Embedding):
        raise config_json.error(
            "model_type", "the export reads only models of token ids and of images, besides its own families"
        )
    assumptions = [f"the module {type(module).__name__} of transformers computes the results", *setfit_lines(folder)]
    if mixtures := run_all_experts(module):
        assumptions.append(f"{mixtures} mixtures of experts run all experts for each row, which takes longer")
    if _takes_images(module):
        rows, image, choices = read_image_module(module, folder, config_json, pooling or modules.pooling, assumptions)
        choices |= {
            "normalize": modules.normalize if normalize is None else normalize,
            "after_pooling": tuple(each.module for each in modules.after_pooling),
        }
        return LibraryModel(rows, None, choices, assumptions, modules, None, has_modules, image)
    if module.config.is_encoder_decoder:
        module = _encoder_of(module, config_json, modules, head)
        assumptions.append("hidden rows are those of the encoder; the decoder is left out")
    chosen = Pooling.NONE if head else pooling or modules.pooling or Pooling.MEAN
    if not head and not pooling and not modules.pooling:
        assumptions.append(f"the checkpoint names no pooling: {chosen}; --pooling chooses another")
    if "bbox" in inspect.signature(module.forward).parameters:
        assumptions.append("all tokens have the place on a page that transformers gives them without boxes")
    embedding = module.get_input_embeddings()
    choices = {
        "vocabulary_size": embedding.num_embeddings,
        "max_tokens": _max_tokens(module, embedding, max_tokens, assumptions),
        "pooling": chosen,
        "concatenated": modules.concatenated if chosen is Pooling.CONCATENATED else (),
        "normalize": chosen is not Pooling.NONE and modules.normalize if normalize is None else normalize,
        "after_pooling": () if chosen is Pooling.NONE else tuple(each.module for each in modules.after_pooling),
    }
    saved = read_checkpoint_tokenizer(folder, config_json)
    if head is not None:
        choices["token_types"] = _token_types(module, saved)
    return LibraryModel(module, head, choices, assumptions, modules, saved, has_modules)


def _encoders(kind: str) -> set[str]:
    """Return the classes without a head of a model type, which may have any name, such as BertGenerationEncoder."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    names = MODEL_MAPPING_NAMES.get(kind, ())
    return {names} if isinstance(names, str) else {*names}


def is_known_type(model_type: str) -> bool:
    """Return whether transformers knows a model type."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def load_module(
    folder: Path, config_json: CheckpointJson, head: HeadConfig | None = None, *, encoder_only: bool = False
) -> nn.Module:
    """Return the module of transformers in float32; with `encoder_only`, without a decoder.

    Raises:
        CheckpointError: transformers cannot read the checkpoint, or a tensor is missing.
    """
    import transformers

    # Of DPR's two encoders, AutoModel reads only that of questions.
    named = [each for each in config_json.strings("architectures") if each.endswith("Encoder")]
    auto: Any = getattr(transformers, named[0], transformers.AutoModel) if named else transformers.AutoModel
    if head is not None:
        auto = transformers.AutoModelForSequenceClassification
        if head.per_token:
            auto = transformers.AutoModelForTokenClassification
    with (
        without_messages(),
        refuse_errors(lambda reason: f"{folder}: transformers cannot read the model ({reason}): save it again"),
    ):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if encoder_only and type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
            auto = transformers.AutoModelForTextEncoding
        # Instead of the file's, which may be a kernel on a hub: transformers chooses "sdpa" or "eager".
        config._attn_implementation = None  # noqa: SLF001 - no other name resets it
        for part in (config, *(getattr(config, name) for name in config.sub_configs)):
            if hasattr(part, "use_cache"):
                part.use_cache = False  # Nothing is generated.
        module, found = auto.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    if getattr(module.config, "attention_type", None) == "block_sparse":
        # The module changes itself: after a short sequence, it attends to all tokens of long ones, too.
        raise config_json.error("attention_type", "the export knows only 'original_full'")
    for name in sorted({*found["missing_keys"], *(each[0] for each in found["mismatched_keys"])}):
        if not name.startswith(_UNUSED):
            raise CheckpointError(
                f"{folder} lacks the tensor {name}, or has it in another shape, and transformers draws it at random: "
                "save the whole model"
            )
    loaded: nn.Module = module.eval()
    return loaded


def _takes_images(module: Any) -> bool:
    """Return whether a module takes images, perhaps beside texts."""
    # Some encoders of texts have the main input of the images beside them.
    first = module.main_input_name if "pixel_values" in inspect.signature(module.forward).parameters else ""
    return first == "pixel_values" or has_texts(module)


def _embedding(module: Any) -> object:
    """Return the table of token ids of a module; None if it has none."""
    with suppress(NotImplementedError, AttributeError):
        return module.get_input_embeddings()
    return None


def _encoder_of(module: Any, config_json: CheckpointJson, modules: Modules, head: HeadConfig | None) -> Any:
    """Return the encoder of a module that also has a decoder."""
    if head is not None or modules.pooling is not None:
        raise config_json.error(
            "model_type",
            "its results are those of a decoder, which the export does not know: save the encoder alone, without a "
            "head and without modules.json",
        )
    encoder = module.get_encoder()
    if not isinstance(_embedding(encoder), nn.Embedding):
        raise config_json.error("model_type", "its encoder takes no token ids")
    return encoder


def _max_tokens(module: nn.Module, embedding: nn.Embedding, chosen: int | None, assumptions: list[str]) -> int:
    """Return the largest length that a module can run: positions of some begin after the id of padding."""
    config: Any = module.config
    # XLNet's limit is -1, and that of MusicFlamingo has the type float.
    limits = (int(getattr(config, name, None) or 0) for name in _POSITION_FIELDS)
    limit = next((each for each in limits if each > 0), None)
    reserved = (embedding.padding_idx if embedding.padding_idx is not None else -1) + 1
    if chosen is not None:
        lengths = [chosen]
    elif limit is None:
        assumptions.append(f"config.json limits no positions: sequences have at most {_DEFAULT_TOKENS} tokens")
        lengths = [_DEFAULT_TOKENS]
    elif limit > _MOST_TOKENS:
        assumptions.append(
            f"sequences have at most {_MOST_TOKENS:,} tokens, and config.json allows {limit:,}: --max-tokens chooses "
            "another limit"
        )
        lengths = [_MOST_TOKENS]
    else:
        lengths = [limit, limit - reserved]
    for tokens in lengths:
        # Without padding tokens, which have no position in some models. EncoderConfig refuses a length below 1.
        if tokens < 1 or _runs(module, torch.full((1, tokens), reserved % embedding.num_embeddings)):
            return tokens
    raise CheckpointError(
        f"{type(module).__name__} of transformers cannot run sequences of {lengths[0]:,} tokens: correct config.json, "
        "or give a smaller --max-tokens"
    )


@torch.inference_mode()
def _runs(module: nn.Module, ids: Tensor) -> bool:
    try:
        call_module(module, ids, torch.ones_like(ids), names_mask=True)
    except ConfigError:
        return False
    return True


def _token_types(module: nn.Module, saved: CheckpointTokenizer | None) -> int:
    """Return the number of token types, if the tokenizer gives the module types; otherwise 0."""
    takes = "token_type_ids" in inspect.signature(module.forward).parameters
    if not takes or saved is None or not saved.gives_token_types:
        return 0
    return int(getattr(module.config, "type_vocab_size", 0))
