"""Read how a checkpoint turns texts into token ids: its tokenizer and the most tokens of a text."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.config import EncoderConfig
from headwaiter_export.text_config import TextConfig
from headwaiter_export.tokenizer_check import check_against_transformers, check_tokenizer
from headwaiter_export.tokenizer_classes import build_tokenizer, find_tokenizer, read_tokenizer_file

# The supported values of the fields of sentence_bert_config.json that could change results.
_ENCODER_FIELDS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_CROSS_ENCODER_FIELDS = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
_TRANSFORMER_FIELDS = {
    **dict.fromkeys(("processing_kwargs", "query_length", "document_length", "query_expansion")),
    **dict.fromkeys(("model_args", "tokenizer_args", "config_args", "tokenizer_name_or_path")),
    **dict.fromkeys(("model_kwargs", "processor_kwargs", "config_kwargs")),
}

# Models have some ids without tokens: fewer than tokens, or in a tiny model fewer than this number.
_MOST_SPARE_IDS = 1000


def read_text(
    folder: Path, config_json: CheckpointJson, config: EncoderConfig, assumptions: list[str]
) -> TextConfig | None:
    """Read the tokenizer of a checkpoint and its limit; return None without a tokenizer.

    Lines about what is missing, and about the limit, are added to `assumptions`.

    Raises:
        CheckpointError: the tokenizer cannot be reproduced, or gives other ids than `transformers`.
    """
    if not config.takes_tokens:
        return None
    path = find_tokenizer(folder, config_json)
    if path is None:
        assumptions.append(f"{folder} has no tokenizer.json: the bundle will accept token ids, but no texts")
        return None
    tokenizer = build_tokenizer(path, config_json)
    text = _text_config(tokenizer, path, config)
    pairs = config.head is not None
    if not check_against_transformers(tokenizer, folder, config_json, pairs=pairs):
        assumptions.append("transformers is not installed: token ids were not compared with those of AutoTokenizer")
    limit, source = _text_limit(folder, _CROSS_ENCODER_FIELDS if pairs else _ENCODER_FIELDS)
    if limit >= config.max_tokens:
        limit, source = config.max_tokens, "the maximum of the model"
    assumptions.append(f"texts have at most {int(limit)} tokens, {source}")
    return replace(text, max_tokens=int(limit), pairs=pairs)


def read_tokenizer(path: Path, config: EncoderConfig) -> TextConfig:
    """Read a tokenizer.json without settings beside it, and limit texts to the model's max_tokens.

    Raises:
        CheckpointError: the file cannot be read, or the tokenizer does not fit the model.
    """
    return _text_config(read_tokenizer_file(path), path, config)


def _text_config(tokenizer: Tokenizer, path: Path, config: EncoderConfig) -> TextConfig:
    """Turn off truncation and padding, and check that the ids fit the model."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocabulary_size:
        raise CheckpointError(
            f"{path}, with the settings beside it, has token id {largest}, but the model has {config.vocabulary_size} "
            "ids: use the model's tokenizer"
        )
    tokens = tokenizer.get_vocab_size()
    if config.vocabulary_size - tokens > max(tokens, _MOST_SPARE_IDS):
        raise CheckpointError(
            f"{path} has {tokens} tokens, but the model has {config.vocabulary_size} ids: save the model's tokenizer "
            "again"
        )
    check_tokenizer(tokenizer, path)
    return TextConfig(tokenizer.to_str(), config.max_tokens)


def _text_limit(folder: Path, fields: Mapping[str, object]) -> tuple[float, str]:
    """Return the most tokens of a text that the checkpoint allows, infinity without a limit, and the limit's source."""
    # The name of the file contains the architecture, as in sentence_roberta_config.json. BERT comes first.
    found = sorted(folder.glob("sentence_*_config.json"), key=lambda path: path.name != "sentence_bert_config.json")
    sentence = CheckpointJson.read_if_present(found[0] if found else folder / "sentence_bert_config.json")
    sentence.require({**_TRANSFORMER_FIELDS, **fields}, known=("max_seq_length", "do_lower_case", "unpad_inputs"))
    if sentence.values.get("do_lower_case"):
        raise sentence.error("do_lower_case", "it must be false, with lower-casing in tokenizer.json")
    tokenizer = CheckpointJson.read_if_present(folder / "tokenizer_config.json")
    older = "max_len" if "model_max_length" not in tokenizer.values else "model_max_length"
    for source, field in ((sentence, "max_seq_length"), (tokenizer, older)):
        limit = source.limit(field)
        if limit is not None:
            return limit, f"{field} of {source.path.name}"
    return math.inf, ""
