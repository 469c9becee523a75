"""Read the head of a checkpoint: its kind, its labels, and how its logits become scores."""

from dataclasses import replace
from pathlib import Path

from headwaiter_export.checkpoints.activations import HEAD_ACTIVATIONS
from headwaiter_export.checkpoints.families.family import Family, SequenceHead
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present
from headwaiter_export.checkpoints.needed_files import SETFIT_SETTINGS
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction, usual_function

# The endings of architectures whose head scores each sequence, and whose head scores each token.
_SEQUENCE_ENDINGS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
# CTC scores each row of a sound for the characters of a text (https://doi.org/10.1145/1143844.1143891).
_CTC_ENDING = "ForCTC"
_TOKEN_ENDINGS = ("ForTokenClassification", _CTC_ENDING)
# The ending of architectures whose head scores each token as the start and as the end of an answer.
_ANSWER_ENDING = "ForQuestionAnswering"
_ANSWER_LABELS: tuple[str, ...] = ("start", "end")
# Architectures with these endings contain a complete encoder. Their heads are ignored.
_HEADLESS_ENDINGS = ("Model", "ModelWithProjection")
_ENCODER_ENDINGS = (
    *_HEADLESS_ENDINGS,
    "ForMaskedLM",
    "ForCausalLM",
    "ForPreTraining",
    "ForMaskedImageModeling",
    "ForConditionalGeneration",
    # Those of DPR, whose vectors are those of a class token.
    "QuestionEncoder",
    "ContextEncoder",
)
# Of these, the endings of architectures that are more than encoders: a reranker may be a …ForCausalLM, and a model of
# sparse vectors a …ForMaskedLM.
_LANGUAGE_MODEL_ENDINGS = ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
_SAVE_ENCODER = (
    "save the encoder without its head (from transformers import AutoModel; "
    "AutoModel.from_pretrained({folder!r}).save_pretrained({copy!r})), or add the modules.json of the embedder"
)
# The names of heads in all families, besides those of `Family.sequence_head`.
_HEAD_TENSORS = ("classifier.", "score.", "qa_outputs.")
# The classes of PyTorch that sentence-transformers names in `activation_fn`.
_FUNCTIONS = {
    "torch.nn.modules.linear.Identity": ScoreFunction.IDENTITY,
    "torch.nn.modules.activation.Sigmoid": ScoreFunction.SIGMOID,
    "torch.nn.modules.activation.Softmax": ScoreFunction.SOFTMAX,
}
_FUNCTION_OF_PROBLEM = {
    "regression": ScoreFunction.IDENTITY,
    "multi_label_classification": ScoreFunction.SIGMOID,
    "single_label_classification": ScoreFunction.SOFTMAX,
}
_POOLINGS = {"cls": (Pooling.CLS,), "mean": (Pooling.MEAN,)}
# The pickled classifier of scikit-learn, which the export does not load.
_SETFIT_HEAD = "model_head.pkl"
# The number of labels that transformers assumes.
_DEFAULT_LABELS = 2


def read_head(config_json: CheckpointJson, family: Family, cross_encoder: CheckpointJson) -> HeadConfig | None:
    """Return the head of a checkpoint; None for an encoder without a head that Headwaiter serves.

    Args:
        config_json: content of config.json.
        family: the family of the checkpoint.
        cross_encoder: content of config_sentence_transformers.json.

    Raises:
        CheckpointError: the architecture or a setting of the head is not supported.
    """
    architectures = config_json.strings("architectures")
    for architecture in architectures:
        if not architecture.endswith((*_ENCODER_ENDINGS, *_SEQUENCE_ENDINGS, *_TOKEN_ENDINGS, _ANSWER_ENDING)):
            raise CheckpointError(
                f"config.json has architecture {architecture}, whose head the export does not know: "
                f"{_save_encoder(config_json)}"
            )
    with_head = _architectures_with_head(config_json)
    if not with_head:
        return None
    if len(architectures) > 1:
        raise config_json.error("architectures", "a checkpoint with a head must name one architecture")
    names, per_token = family.sequence_head, with_head[0].endswith((*_TOKEN_ENDINGS, _ANSWER_ENDING))
    finds_answers = with_head[0].endswith(_ANSWER_ENDING)
    # A decoder over the same text would score its tokens.
    has_decoder = family.decoder_names is not None
    if names is None or (per_token and has_decoder) or (finds_answers and not names.finds_answers):
        raise config_json.error("architectures", f"the export does not know the head: {_save_encoder(config_json)}")
    labels, function = _ANSWER_LABELS, ScoreFunction.IDENTITY
    if not finds_answers:
        labels = (_read_characters if with_head[0].endswith(_CTC_ENDING) else _read_labels)(config_json)
        function = read_function(config_json, cross_encoder, len(labels))
        function = ScoreFunction.SOFTMAX if per_token else function
    for number, label in enumerate(labels):
        try:
            label.encode()
        except UnicodeEncodeError:
            raise CheckpointError(
                f"{config_json.path.parent}: the name of label {number} is no text in Unicode: correct the file"
            ) from None
    if per_token and not names.scores_tokens:
        return HeadConfig(labels, function, per_token=True)
    return HeadConfig(
        labels,
        function,
        per_token=per_token,
        poolings=(Pooling.CLS,) if per_token else _read_poolings(config_json, names),
        activation=_read_activation(config_json, family, names),
        norm=bool(names.norm),
        bias=_has_bias(config_json, names, per_token=per_token),
        pad_id=_read_pad_id(config_json) if names.skips_padding and not per_token else None,
    )


def read_library_head(config_json: CheckpointJson, cross_encoder: CheckpointJson) -> HeadConfig | None:
    """Return the labels of a head whose logits transformers computes; None for an encoder without a head.

    Raises:
        CheckpointError: the head is of another kind.
    """
    with_head = _architectures_with_head(config_json)
    if not with_head:
        return None
    per_token = with_head[0].endswith("ForTokenClassification")
    if len(config_json.strings("architectures")) > 1 or not (
        per_token or with_head[0].endswith("ForSequenceClassification")
    ):
        raise config_json.error("architectures", f"the export does not know the head: {_save_encoder(config_json)}")
    labels = _read_labels(config_json)
    function = ScoreFunction.SOFTMAX if per_token else read_function(config_json, cross_encoder, len(labels))
    return HeadConfig(labels, function, per_token=per_token)


def check_is_encoder(config_json: CheckpointJson, cross_encoder: CheckpointJson, default: Pooling) -> None:
    """Check that a checkpoint without a head that Headwaiter serves is an encoder, for which a pooling can be assumed.

    Raises:
        CheckpointError: the checkpoint is a cross-encoder, or its architecture has the head of a language model.
    """
    architectures = config_json.strings("architectures")
    if cross_encoder.values:
        raise config_json.error(
            "architectures", f"a CrossEncoder of {cross_encoder.path} must have a head that classifies"
        )
    if any(each.endswith(_LANGUAGE_MODEL_ENDINGS) for each in architectures):
        raise config_json.error(
            "architectures",
            "the checkpoint does not say that it is an embedder, and the export leaves the head of the language model "
            f"out: choose a pooling to export an embedder, for example --pooling {default}",
        )


def setfit_lines(folder: Path) -> list[str]:
    """Return a line about the classifier that SetFit saved beside the encoder, and that the export leaves out."""
    if not is_present(folder / SETFIT_SETTINGS) and not is_present(folder / _SETFIT_HEAD):
        return []
    return [f"SetFit's classifier, {_SETFIT_HEAD}, is left out: export a module of the encoder with a linear layer"]


def architectures_with_other_heads(config_json: CheckpointJson) -> list[str]:
    """Return the architectures of an encoder that have a head, which the export leaves out."""
    return [each for each in config_json.strings("architectures") if not each.endswith(_HEADLESS_ENDINGS)]


def with_head(family: Family, head: HeadConfig) -> Family:
    """Return a family that also names the modules of a head."""
    names = {"head.output": "qa_outputs" if head.finds_answers else "classifier"}
    modules = family.sequence_head
    if modules is not None and (modules.scores_tokens or not head.per_token):
        names = {"head.output": modules.output, "head.dense": modules.dense, "head.norm": modules.norm}
    return replace(family, module_names={**family.module_names, **names})


def without_head(config_json: CheckpointJson, family: Family) -> Family:
    """Return a family that ignores the tensors of the head, if the architecture of the checkpoint has one."""
    if not _architectures_with_head(config_json):
        return family
    modules = family.sequence_head
    names = (modules.output, modules.dense, modules.norm) if modules else ()
    prefixes = (*_HEAD_TENSORS, *(f"{name}." for name in names if name))
    return replace(family, ignored_prefixes=(*family.ignored_prefixes, *prefixes))


def _save_encoder(config_json: CheckpointJson) -> str:
    """Return the Python that saves a checkpoint without its head, in a folder beside it."""
    folder = config_json.path.parent
    return _SAVE_ENCODER.format(folder=str(folder), copy=f"{folder}-encoder")


def _architectures_with_head(config_json: CheckpointJson) -> list[str]:
    return [each for each in config_json.strings("architectures") if not each.endswith(_ENCODER_ENDINGS)]


def _read_labels(config_json: CheckpointJson) -> tuple[str, ...]:
    """Return the names of the labels, in the order of the logits."""
    if config_json.values.get("id2label") is None:
        count = config_json.size("num_labels") if "num_labels" in config_json.values else _DEFAULT_LABELS
        return unnamed_labels(count)
    names = config_json.string_map("id2label")
    labels = tuple(names.get(str(index), "") for index in range(len(names)))
    if not labels or not all(labels):
        raise config_json.error("id2label", "it must name a label for each number from 0")
    return labels


def _read_characters(config_json: CheckpointJson) -> tuple[str, ...]:
    """Return the characters that a head for CTC scores, in the order of the logits, from the files of the tokenizer."""
    folder, count = config_json.path.parent, config_json.size("vocab_size")
    vocabulary = CheckpointJson.read_if_present(folder / "vocab.json")
    for character, number in vocabulary.values.items():
        if type(number) is not int or not 0 <= number < count:
            raise vocabulary.error(character, f"it must be a whole number from 0 to {count - 1}")
    # The head scores no added token beyond vocab_size.
    added = CheckpointJson.read_if_present(folder / "added_tokens.json")
    tokens = {added.size(token, least=0): token for token in added.values}
    decoder = CheckpointJson.read_if_present(folder / "tokenizer_config.json").values.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        if number.isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            tokens[int(number)] = token["content"]
    tokens |= {number: character for character, number in vocabulary.values.items()}
    return tuple(tokens.get(number) or label for number, label in enumerate(unnamed_labels(count)))


def unnamed_labels(count: int) -> tuple[str, ...]:
    """Return the labels of a head whose checkpoint has no names for them, as in transformers."""
    return tuple(f"LABEL_{number}" for number in range(count))


def read_function(config_json: CheckpointJson, cross_encoder: CheckpointJson, labels: int) -> ScoreFunction:
    """Return how logits become scores: as sentence-transformers says, else as `problem_type` says, else by the labels.

    The last two rules are those of `TextClassificationPipeline` of transformers.
    """
    fields = config_json.values.get("sentence_transformers")
    nested = CheckpointJson(config_json.path, fields if isinstance(fields, dict) else {})
    sources = [(cross_encoder, "activation_fn"), (nested, "activation_fn")]
    # As in sentence-transformers, the field hides its older form even if it is null.
    if "activation_fn" not in nested.values:
        sources.append((config_json, "sbert_ce_default_activation_function"))
    for source, field in sources:
        if source.values.get(field) is not None:
            return source.choice(field, _FUNCTIONS)
    if config_json.values.get("problem_type") is not None:
        problem = config_json.choice("problem_type", _FUNCTION_OF_PROBLEM)
        # One score has no other scores to be compared with.
        return ScoreFunction.SIGMOID if problem is ScoreFunction.SOFTMAX and labels == 1 else problem
    return usual_function(labels)


def _read_poolings(config_json: CheckpointJson, names: SequenceHead) -> tuple[Pooling, ...]:
    """Return how the rows of a sequence become the vector that the head scores."""
    return config_json.choice(names.pooling_field, _POOLINGS) if names.pooling_field else names.poolings


def _read_pad_id(config_json: CheckpointJson) -> int | None:
    """Return the id of the padding token; None if no token can have it."""
    if config_json.values.get("pad_token_id") is None:
        return None
    pad_id = config_json.size("pad_token_id", least=-1)
    return pad_id if pad_id >= 0 else None


def _has_bias(config_json: CheckpointJson, names: SequenceHead, *, per_token: bool) -> bool:
    if not per_token:
        return names.bias
    return not names.bias_field or config_json.flag(names.bias_field, default=True)


def _read_activation(config_json: CheckpointJson, family: Family, names: SequenceHead) -> HeadActivation | None:
    """Return the activation of the head; None for a head of one linear layer."""
    if not names.dense or names.activation is not None:
        return names.activation
    return config_json.choice(names.activation_field or family.activation_field, HEAD_ACTIVATIONS)
