"""Read how a checkpoint turns texts into token ids: its tokenizer, the most tokens of a text, and its prompts.

A prompt is a prefix of texts, such as "query: ". Only `sentence-transformers` models have prompts.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, normalizers

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.needed_files import TRANSFORMER_SETTINGS
from headwaiter_export.checkpoints.pair_template import read_pair_template, template_of_question
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer, read_tokenizer_file
from headwaiter_export.checkpoints.tokenizers.comparison import (
    check_against_transformers,
    check_tokenizer,
    contradictions,
)
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_proto.manifest_pb2 import PairTemplate
from headwaiter_proto.rules.pairs import text_of_pair

# The two tasks of sentence-transformers.
QUERY, DOCUMENT = "query", "document"
_ROWS = {"method": "forward", "method_output_name": "last_hidden_state"}
# The supported values of the fields of sentence_bert_config.json that could change results.
_ENCODER_FIELDS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": _ROWS},
    "module_output_name": "token_embeddings",
}
# sentence-transformers adds texts to the inputs of most encoders of sounds, which take none.
_SOUND_ROWS = {"audio": _ROWS, "audio+text": _ROWS}
# Those of a model of images and texts that gives pooled vectors.
_FEATURES_FIELDS = {
    "transformer_task": "feature-extraction",
    "modality_config": {
        kind: {"method": f"get_{kind}_features", "method_output_name": "pooler_output"} for kind in ("text", "image")
    },
    "module_output_name": "sentence_embedding",
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
_MASKED_FIELDS = {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "token_embeddings",
}
_LOGIT_SCORE_FIELDS = {
    "transformer_task": "text-generation",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "logits"},
        "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
    },
    "module_output_name": "causal_logits",
}
# Models have some ids without tokens: fewer than tokens, or in a tiny model fewer than this number.
_MOST_SPARE_IDS = 1000


@dataclass(frozen=True)
class Prompt:
    """A prefix of all texts of one kind, such as "query: ".

    Attributes:
        name: name of the prompt in requests.
        text: the prefix.
        tokens: number of the prompt's tokens and of special tokens before it; 0 for an empty prompt. With
            `pooling_skips_prompt`, the number of rows that pooling skips.
        max_tokens: most tokens of a text with the prompt; 0 for the limit of all texts.
        expanded_tokens: the number of tokens to which the server fills up a shorter text, as in query expansion; 0 for
            a prompt that fills up no texts.
        expansion_id: the token id that fills up texts.
        skiplist_ids: ids of tokens without a hidden row in replies.
    """

    name: str
    text: str
    tokens: int
    max_tokens: int = 0
    expanded_tokens: int = 0
    expansion_id: int = 0
    skiplist_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextConfig:
    """A tokenizer, its limit and the model's prompts.

    Attributes:
        tokenizer: content of a `tokenizers` file (tokenizer.json) without truncation and padding.
        max_tokens: most tokens of a text, special tokens included.
        prompts: prompts that a request may choose from.
        default_prompt: name of the prompt for requests that name none; empty if there is no default.
        pooling_skips_prompt: whether pooling skips the first rows of a text with a prompt.
        pairs: whether the model takes pairs of texts.
        pair_template: the text around the two texts of a pair; None if the tokenizer joins their tokens.
        unweighted_ids: ids of tokens without an entry in sparse vectors that a head makes.
        first_text_keeps_more: `first_text_keeps_more` of the manifest.
    """

    tokenizer: str
    max_tokens: int
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    pooling_skips_prompt: bool = False
    pairs: bool = False
    pair_template: PairTemplate | None = None
    unweighted_ids: tuple[int, ...] = ()
    first_text_keeps_more: bool = False

    def last_ids(self) -> list[int]:
        """Return the last token id of a text and, if the model takes pairs, of a pair."""
        tokenizer = Tokenizer.from_str(self.tokenizer)
        encoded = [tokenizer.encode("a"), *([tokenizer.encode("a", "b")] if self.pairs else [])]
        return [each.ids[-1] for each in encoded]

    def largest_id(self) -> int:
        """Return the largest id of a token."""
        return max(Tokenizer.from_str(self.tokenizer).get_vocab().values())


def read_text(
    folder: Path,
    saved: CheckpointTokenizer | None,
    config: EncoderConfig,
    assumptions: list[str],
    chat_settings: CheckpointJson | None = None,
    question: str | None = None,
    known_fields: Collection[str] = (),
    modality: str = "text",
    *,
    has_modules: bool = False,
    pools_itself: bool = False,
) -> TextConfig | None:
    """Return the tokenizer that a checkpoint has, `saved`, with its limit; None without a tokenizer.

    Lines about what is missing, and about the limit, are added to `assumptions`. A model that reads pairs as chats has
    `chat_settings`, the content of config_sentence_transformers.json. A model that reads pairs in a question
    has `question`. The caller reads the fields `known_fields` of sentence_bert_config.json. `modality` is what
    sentence-transformers calls the inputs of a model without texts. `has_modules` is whether modules.json names the
    folder, and `pools_itself` is that of `Modules`.

    Raises:
        CheckpointError: the tokenizer cannot be reproduced, or gives other ids than `transformers`.
    """
    pairs, template = config.head is not None and not config.head.weighs_tokens, None
    if pools_itself:
        fields = _FEATURES_FIELDS
    elif not config.takes_tokens:
        saved = transformer_settings(folder).values.get("modality_config")
        is_sound = modality == "audio" and saved == _SOUND_ROWS
        fields = {**_ENCODER_FIELDS, "modality_config": _SOUND_ROWS if is_sound else {modality: _ROWS}}
    elif chat_settings is not None:
        fields = _LOGIT_SCORE_FIELDS
    elif config.vocabulary_head is not None:
        fields = _MASKED_FIELDS
    else:
        fields = _CROSS_ENCODER_FIELDS if pairs else _ENCODER_FIELDS
    # sentence-transformers reads no settings beside a transformer that no modules.json names.
    settings = transformer_settings(folder) if has_modules else CheckpointJson(folder, {})
    _checked_settings(settings, fields, known_fields)
    if not config.takes_tokens:
        return None
    if saved is None:
        assumptions.append(
            f"{folder} has neither tokenizer.json nor a known vocab.txt: the bundle will accept token ids, but no texts"
        )
        return None
    tokenizer = saved.tokenizer
    text = _text_config(tokenizer, saved.path, config)
    limit, source = _text_limit(saved, settings)
    if limit >= config.max_tokens:
        limit, source = config.max_tokens, "the maximum of the model"
    if chat_settings is not None:
        template = _chat_template(saved, chat_settings, assumptions)
    elif question is not None:
        template = template_of_question(question, tokenizer)
    check_against_transformers(saved, pairs=pairs and template is None)
    assumptions += contradictions(saved)
    if settings.is_true("do_lower_case"):
        _check_lower_case(settings, has_normalizer=not saved.is_python and template is None)
        _add_lower_case(tokenizer)
        assumptions.append("texts become lower case (do_lower_case of sentence-transformers)")
        text = replace(text, tokenizer=tokenizer.to_str())
    if template is not None:
        tokens = len(tokenizer.encode(text_of_pair(template, ("", "")), add_special_tokens=False))
        if tokens >= limit:
            raise CheckpointError(
                f"{folder}: the template of pairs has {tokens} tokens, and texts have at most {int(limit)}, {source}: "
                "shorten the template, or raise the limit"
            )
    assumptions.append(f"texts have at most {int(limit)} tokens, {source}")
    return replace(
        text,
        max_tokens=int(limit),
        pairs=pairs,
        pair_template=template,
        first_text_keeps_more=pairs and saved.is_python,
    )


def _chat_template(saved: CheckpointTokenizer, prompts: CheckpointJson, assumptions: list[str]) -> PairTemplate:
    """Read the text around pairs, with the default prompt of the checkpoint."""
    texts = _prompt_texts(prompts)
    prompt = ""
    if prompts.values.get("default_prompt_name") is not None:
        prompt = prompts.choice("default_prompt_name", texts)
    if others := [name for name, text in texts.items() if text != prompt]:
        used = prompts.values["default_prompt_name"] if prompt else "no prompt"
        assumptions.append(f"all pairs have {used}; left out: {', '.join(others)}")
    sentence = transformer_settings(saved.folder)
    for field in _LOGIT_SCORE_FIELDS:
        if not sentence.values.get(field):
            # Without modality_config, sentence-transformers would not use the chat template.
            raise CheckpointError(f"{sentence.path} has no {field}: save the model again")
    return read_pair_template(saved, prompt)


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


def transformer_settings(folder: Path) -> CheckpointJson:
    """Return the settings of a Transformer module; without fields if its folder has none.

    As in sentence-transformers, the first file with fields counts.
    """
    found = (CheckpointJson.read_if_present(folder / name) for name in TRANSFORMER_SETTINGS)
    return next((each for each in found if each.values), CheckpointJson(folder / TRANSFORMER_SETTINGS[0], {}))


def _checked_settings(sentence: CheckpointJson, fields: Mapping[str, object], known: Collection[str]) -> None:
    """Check that the settings of a Transformer module have supported values, or are known to the caller."""
    supported = {name: value for name, value in {**_TRANSFORMER_FIELDS, **fields}.items() if name not in known}
    sentence.require(supported, known=("max_seq_length", "do_lower_case", "unpad_inputs", *known))


def _check_lower_case(settings: CheckpointJson, *, has_normalizer: bool) -> None:
    """Check that sentence-transformers turns the texts of a checkpoint with do_lower_case into lower case."""
    if not has_normalizer:
        raise settings.error("do_lower_case", "it must be false with a template of pairs, and with EsmTokenizer")


def _add_lower_case(tokenizer: Tokenizer) -> None:
    """Let a tokenizer turn texts into lower case before all else, as sentence-transformers does for `do_lower_case`."""
    normalizer = json.loads(tokenizer.to_str())["normalizer"] or {}
    if {"type": "Lowercase"} in normalizer.get("normalizers", [normalizer]):
        return
    steps = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)


def _text_limit(saved: CheckpointTokenizer, sentence: CheckpointJson) -> tuple[float, str]:
    """Return the most tokens of a text that the checkpoint allows, infinity without a limit, and the limit's source."""
    tokenizer = CheckpointJson.read_if_present(saved.folder / "tokenizer_config.json")
    older = "max_len" if "model_max_length" not in tokenizer.values else "model_max_length"
    for source, field in ((sentence, "max_seq_length"), (tokenizer, older)):
        limit = source.limit(field)
        if limit is not None:
            return limit, f"{field} of {source.path.name}"
    return math.inf, ""


def filled_texts(text: TextConfig, saved: CheckpointTokenizer) -> TextConfig:
    """Return a text configuration whose default prompt appends padding tokens, up to the most tokens of a text.

    Raises:
        CheckpointError: the tokenizer has no padding token, pads on the left, or masks padding tokens.
    """
    folder, reference = saved.folder, saved.reference
    if reference.pad_token_id is None or reference.padding_side != "right":
        raise CheckpointError(f"{folder}: the tokenizer must have a padding token, and padding_side 'right'")
    if "attention_mask" in reference.model_input_names:
        raise CheckpointError(
            f"{folder}: transformers would mask the padding of texts, which SigLIP's training did not: set "
            'model_input_names in tokenizer_config.json to ["input_ids"]'
        )
    prompt = Prompt("filled", "", 0, expanded_tokens=text.max_tokens, expansion_id=int(reference.pad_token_id))
    return replace(text, prompts=(prompt,), default_prompt=prompt.name)


def with_prompts(
    text: TextConfig,
    prompts_json: CheckpointJson,
    route: str | None = None,
    adapter: str | None = None,
    unpooled: CheckpointTokenizer | None = None,
) -> TextConfig:
    """Return a text configuration with the checkpoint's prompts.

    Args:
        text: the configuration without prompts.
        prompts_json: content of config_sentence_transformers.json.
        route: the route of a Router. Texts of the routes "query" and "document" have the prompt of the same name or
            none by default, as in `encode_query` and `encode_document`.
        adapter: the adapter in the weights: a prompt of this name is the default if the file names no default.
        unpooled: the tokenizer, if pooling leaves out the rows of prompts; None if pooling includes them.

    Raises:
        CheckpointError: a prompt is not a string or too long, or the default prompt is unknown.
    """
    texts = _prompt_texts(prompts_json)
    default = adapter if adapter is not None and adapter in texts else ""
    if prompts_json.values.get("default_prompt_name") is not None:
        default = prompts_json.choice("default_prompt_name", {name: name for name in texts})
    if route in (QUERY, DOCUMENT):
        default = route if route in texts else ""
    tokenizer = Tokenizer.from_str(text.tokenizer)
    prompts = tuple(_read_prompt(name, words, tokenizer, text.max_tokens) for name, words in texts.items())
    if unpooled is not None:
        special = {*unpooled.reference.all_special_ids}
        prompts = tuple(replace(each, tokens=_skipped_rows(each.text, tokenizer, special)) for each in prompts)
    return replace(
        text, prompts=prompts, default_prompt=default, pooling_skips_prompt=bool(prompts) and unpooled is not None
    )


def _prompt_texts(prompts_json: CheckpointJson) -> Mapping[str, str]:
    """Return the text of each prompt by name; null in the file stands for an empty prompt."""
    values = prompts_json.values.get("prompts") or {}
    if not isinstance(values, dict) or not all(isinstance(text, str | None) for text in values.values()):
        raise prompts_json.error("prompts", "it must be an object of strings")
    return {name: text or "" for name, text in values.items()}


def _read_prompt(name: str, text: str, tokenizer: Tokenizer, max_tokens: int) -> Prompt:
    special = np.array(tokenizer.encode(text).special_tokens_mask, bool)
    # An empty prompt leaves texts as they are.
    if text and len(special) >= max_tokens:
        raise CheckpointError(
            f"prompt {name!r} has {len(special)} tokens, special tokens included, but prompt and text together have at "
            f"most {max_tokens}: shorten the prompt, or raise max_seq_length"
        )
    ordinary = np.flatnonzero(~special)
    return Prompt(name, text, int(ordinary[-1]) + 1 if len(ordinary) else 0)


def _skipped_rows(prompt: str, tokenizer: Tokenizer, special: Collection[int]) -> int:
    """Return how many rows pooling leaves out for a prompt in sentence-transformers.

    These are all tokens of the prompt alone, without a special token at the end, which follows the text. If the
    tokenizer adds two such tokens, pooling leaves out the first token of a text with the prompt.
    """
    ids = tokenizer.encode(prompt).ids if prompt else []
    return len(ids) - bool(ids and ids[-1] in special)
