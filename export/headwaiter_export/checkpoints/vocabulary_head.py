"""Read the head of a masked language model, whose logits become sparse vectors."""

from dataclasses import replace

from torch import Tensor

from headwaiter_export.checkpoints.activations import HEAD_ACTIVATIONS
from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import check_tied
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig

_OUTPUT = "vocabulary_head.output"
_LOGS = {"relu": False, "log1p_relu": True}


def read_vocabulary_head(
    config_json: CheckpointJson, family: Family, splade: CheckpointJson | None
) -> tuple[VocabularyHeadConfig, Family]:
    """Return the head of a masked language model, and the family with the names of its modules.

    Args:
        config_json: content of config.json.
        family: the family of the checkpoint.
        splade: settings of SpladePooling of sentence-transformers; None for its defaults.

    Raises:
        CheckpointError: the checkpoint has no such head, or a setting is not supported.
    """
    names = family.vocabulary_head
    if names is None:
        raise config_json.error("model_type", "the export does not know the head of its masked language model")
    architectures = config_json.strings("architectures")
    if not architectures or not all(each.endswith("ForMaskedLM") for each in architectures):
        raise config_json.error("architectures", "sparse vectors need a …ForMaskedLM")
    activation = names.activation or config_json.choice(
        names.activation_field or family.activation_field, HEAD_ACTIVATIONS
    )
    log_twice = False
    if splade is not None:
        splade.choice("pooling_strategy", {"max": True})
        log_twice = splade.choice("activation_function", _LOGS)
    modules = {"vocabulary_head.dense": names.dense, "vocabulary_head.norm": names.norm, _OUTPUT: _OUTPUT}
    return VocabularyHeadConfig(activation, log_twice), replace(family, module_names={**family.module_names, **modules})


def fold_vocabulary_head(tensors: dict[str, Tensor], config_json: CheckpointJson, family: Family) -> None:
    """Give the layer of the logits its weights, which may be the vectors of the tokens, and its bias.

    Raises:
        CheckpointError: tied weights, or two copies of the bias, differ.
    """
    names = family.vocabulary_head
    assert names is not None
    weight, words = f"{names.output}.weight", family.tensor_name("embedding.tokens.weight")
    own_bias, tied = f"{names.output}.bias", config_json.flag("tie_word_embeddings", default=True)
    if tied:
        check_tied(tensors, weight, words, config_json)
        check_tied(tensors, names.bias, own_bias, config_json)
    own = tensors.pop(weight, None)
    if tied:
        own = tensors.get(words, own)
    # The layer's own bias is first: without ties, transformers does not use the other one.
    biases = [tensors.pop(name) for name in dict.fromkeys((own_bias, names.bias)) if name in tensors]
    if own is None or not biases:
        raise CheckpointError(f"the checkpoint has no tensor {weight if own is None else names.bias}: add it")
    tensors[f"{_OUTPUT}.weight"], tensors[f"{_OUTPUT}.bias"] = own, biases[0]
