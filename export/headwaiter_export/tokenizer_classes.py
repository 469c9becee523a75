"""Build the tokenizer of a checkpoint as `transformers` 5 does.

`AutoTokenizer` chooses a class by its name. Most classes keep only the vocabulary of tokenizer.json. They build the
other parts from the settings beside it and from their own defaults, whatever tokenizer.json says.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.special_tokens import TokenSettings, read_token_settings

_Parts = dict[str, Any]


@dataclass(frozen=True)
class TokenizerClass:
    """How a class of `transformers` builds a tokenizer.

    Attributes:
        model: type of the model in tokenizer.json, whose vocabulary the class keeps.
        defaults: default of each named special token.
        replaced_parts: returns the parts that replace those of tokenizer.json, from the settings, tokens and old parts.
        post_processor: returns the last step, which adds special tokens to a text.
        extra_tokens: default of the special tokens without a name.
    """

    model: str
    defaults: Mapping[str, str]
    replaced_parts: Callable[[CheckpointJson, TokenSettings, _Parts], _Parts]
    post_processor: Callable[[CheckpointJson, TokenSettings, Tokenizer], processors.PostProcessor]
    extra_tokens: tuple[str, ...] = ()


def build_tokenizer(folder: Path, config_json: CheckpointJson) -> Tokenizer:
    """Return the tokenizer that `AutoTokenizer` builds from a checkpoint folder.

    Raises:
        CheckpointError: a file is damaged, or has a setting that the export cannot apply.
    """
    settings = CheckpointJson.read_if_present(folder / "tokenizer_config.json")
    for name, expected in _REFUSED_SETTINGS.items():
        if settings.values.get(name):
            raise settings.error(name, expected)
    path = folder / "tokenizer.json"
    tokenizer = read_tokenizer_file(path)
    parts: _Parts = json.loads(tokenizer.to_str())
    name, kind = _read_class(settings, config_json)
    if kind is None:
        tokens = read_token_settings(folder, settings, parts["added_tokens"], {}, ())
        tokenizer.add_tokens(tokens.missing_from({token["content"] for token in parts["added_tokens"]}))
        return tokenizer
    if parts["model"]["type"] != kind.model:
        raise CheckpointError(
            f"{path} has a {parts['model']['type']} model, but {name} builds a {kind.model} model: {_SAVE_AGAIN}"
        )
    tokens = read_token_settings(folder, settings, parts["added_tokens"], kind.defaults, kind.extra_tokens)
    replaced = kind.replaced_parts(settings, tokens, parts)
    replaced["model"] = parts["model"] | replaced["model"]
    parts |= {"added_tokens": [], "post_processor": None, "normalizer": None, **replaced}
    try:
        tokenizer = Tokenizer.from_str(json.dumps(parts))
        tokenizer.add_tokens(tokens.missing_from(set()))
        tokenizer.post_processor = kind.post_processor(settings, tokens, tokenizer)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise CheckpointError(f"{path} does not fit {name} ({error}): {_SAVE_AGAIN}") from None
    return tokenizer


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        CheckpointError: the file cannot be read, or has no tokens.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise CheckpointError(f"{path} cannot be read ({error}): save the tokenizer again") from None
    if not tokenizer.get_vocab():
        raise CheckpointError(f"{path} has no tokens: save the tokenizer again")
    return tokenizer


def _read_class(settings: CheckpointJson, config_json: CheckpointJson) -> tuple[str, TokenizerClass | None]:
    """Return the name of the class and the class; None for a class that keeps all parts of tokenizer.json."""
    for source in (settings, config_json):
        name = source.values.get("tokenizer_class")
        if name is not None:
            known = {each + suffix: each for each in _CLASSES for suffix in ("", "Fast")}
            if not isinstance(name, str) or name not in known:
                raise source.error("tokenizer_class", f"it must be one of {', '.join(_CLASSES)}: {_SAVE_AGAIN}")
            return known[name], _CLASSES[known[name]]
    name = _CLASS_OF_MODEL_TYPE[config_json.values["model_type"]]
    return name, _CLASSES[name]


def _bert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: _Parts) -> _Parts:
    strip_accents = None if settings.values.get("strip_accents") is None else settings.boolean("strip_accents")
    return {
        "model": {
            "unk_token": tokens.name("unk_token"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.flag("tokenize_chinese_chars", default=True),
            "strip_accents": strip_accents,
            "lowercase": settings.flag("do_lower_case", default=True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def _roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: _Parts) -> _Parts:
    return {
        "model": {
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
        },
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": settings.flag("add_prefix_space", default=False),
            "trim_offsets": True,
            "use_regex": True,
        },
    }


def _sentencepiece_parts(settings: CheckpointJson, parts: _Parts, unknown_id: int) -> _Parts:
    """Return the parts of a Unigram tokenizer, which keeps only the first normaliser that SentencePiece compiled."""
    normalizer = parts["normalizer"] or {}
    compiled = [each for each in normalizer.get("normalizers", [normalizer]) if each.get("type") == "Precompiled"]
    prepend_scheme = "always" if settings.flag("add_prefix_space", default=True) else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend_scheme, "split": True}
    return {
        "model": {"unk_id": unknown_id, "byte_fallback": False},
        "normalizer": compiled[0] if compiled else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
    }


def _xlm_roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: _Parts) -> _Parts:
    return _sentencepiece_parts(settings, parts, unknown_id=3)


def _camembert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: _Parts) -> _Parts:
    pieces = [piece for piece, _ in parts["model"]["vocab"]]
    unknown = tokens.name("unk_token")
    return _sentencepiece_parts(settings, parts, pieces.index(unknown) if unknown in pieces else 0)


def _bert_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return _template([begin, "$A", end], [f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"], tokenizer)


def _sentencepiece_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    begin, end = tokens.name("bos_token"), tokens.name("eos_token")
    return _template([begin, "$A", end], [begin, "$A", end, end, "$B", end], tokenizer)


def _roberta_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return processors.RobertaProcessing(
        (end, _token_id(tokenizer, end)),
        (begin, _token_id(tokenizer, begin)),
        settings.flag("trim_offsets", default=True),
        settings.flag("add_prefix_space", default=False),
    )


def _mpnet_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return processors.RobertaProcessing(
        (end, _token_id(tokenizer, end)),
        (begin, _token_id(tokenizer, begin)),
        trim_offsets=True,
        add_prefix_space=False,
    )


def _template(single: list[str], pair: list[str], tokenizer: Tokenizer) -> processors.PostProcessor:
    """Return a post-processor; the server encodes no pairs, but an unchanged tokenizer.json keeps a bundle's digest."""
    special_tokens = [(token, _token_id(tokenizer, token)) for token in dict.fromkeys((single[0], single[-1]))]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None  # every special token was added
    return token_id


_SAVE_AGAIN = "save the tokenizer as PreTrainedTokenizerFast, as docs/models.md shows"
# Settings of tokenizer_config.json that must be absent or empty, and what to do otherwise.
_REFUSED_SETTINGS = {
    "auto_map": f"the export does not run code of a checkpoint: {_SAVE_AGAIN}",
    "fast_tokenizer_files": "keep the right file as tokenizer.json, and remove the field",
    "init_inputs": "remove the field",
    "split_special_tokens": "it must be false",
}
_BERT = TokenizerClass(
    model="WordPiece",
    defaults={
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    replaced_parts=_bert_parts,
    post_processor=_bert_post_processor,
)
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_CLASSES: dict[str, TokenizerClass | None] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "RobertaTokenizer": TokenizerClass("BPE", _ROBERTA_TOKENS, _roberta_parts, _roberta_post_processor),
    "XLMRobertaTokenizer": TokenizerClass(
        "Unigram", _ROBERTA_TOKENS, _xlm_roberta_parts, _sentencepiece_post_processor
    ),
    "CamembertTokenizer": TokenizerClass(
        "Unigram",
        _ROBERTA_TOKENS,
        _camembert_parts,
        _sentencepiece_post_processor,
        extra_tokens=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "MPNetTokenizer": TokenizerClass(
        "WordPiece", _ROBERTA_TOKENS | {"unk_token": "[UNK]"}, _bert_parts, _mpnet_post_processor
    ),
    "PreTrainedTokenizer": None,
    "TokenizersBackend": None,
}
_CLASS_OF_MODEL_TYPE = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "ernie": "BertTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    "xlm-roberta-xl": "TokenizersBackend",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
