"""Choose the family of a checkpoint, and refuse fields of config.json that no family follows."""

from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.families.model_types import (
    FAMILIES,
    FAMILIES_WITH_HEADS,
    FEATURE_FAMILIES,
    WORD_FAMILIES,
    family_of_fields,
)
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.modules_json import CONVERT_COLBERT
from headwaiter_export.config.choices import Positions

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


def choose_family(config_json: CheckpointJson, *, with_head: bool, scores_words: bool) -> Family:
    """Return the family of a checkpoint.

    Args:
        config_json: content of config.json.
        with_head: whether a head that the architecture names is read.
        scores_words: whether the logits of words are the scores of pairs.

    Raises:
        NoFamilyError: no family has the model type.
        CheckpointError: the checkpoint is not a supported encoder.
    """
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
