"""Build the tokenizer of a checkpoint as `transformers` 5 does.

`AutoTokenizer` chooses a class by its name. Most classes keep only the vocabulary of tokenizer.json. They build the
other parts from the settings beside it and from their own defaults, whatever tokenizer.json says.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, processors

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson, refuse_errors
from headwaiter_export.special_tokens import TokenSettings, read_token_settings
from headwaiter_export.tokenizer_parts import (
    T5_SENTINELS,
    Parts,
    albert_parts,
    albert_post_processor,
    bert_parts,
    bert_post_processor,
    camembert_parts,
    deberta_parts,
    gemma_parts,
    kept_post_processor,
    llama_parts,
    mpnet_post_processor,
    qwen2_parts,
    roberta_parts,
    roberta_post_processor,
    sentencepiece_post_processor,
    t5_parts,
    t5_post_processor,
    xlm_roberta_parts,
)


@dataclass(frozen=True)
class TokenizerClass:
    """How a class of `transformers` builds a tokenizer.

    Attributes:
        model: type of the model in tokenizer.json, whose vocabulary the class keeps.
        defaults: default of each named special token.
        replaced_parts: returns the parts that replace those of tokenizer.json, from the settings, tokens and old parts.
        post_processor: returns the last step, which adds special tokens to a text.
        extra_tokens: default of the special tokens without a name.
        removes_flags: whether the special tokens lose flags such as lstrip.
    """

    model: str
    defaults: Mapping[str, str]
    replaced_parts: Callable[[CheckpointJson, TokenSettings, Parts], Parts]
    post_processor: Callable[[CheckpointJson, TokenSettings, Tokenizer], processors.PostProcessor]
    extra_tokens: tuple[str, ...] = ()
    removes_flags: bool = False


def find_tokenizer(folder: Path, config_json: CheckpointJson) -> Path | None:
    """Return the file of a checkpoint's vocabulary: tokenizer.json or, for classes that read it, vocab.txt."""
    path, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    if path.is_file():
        return path
    with suppress(CheckpointError):
        _, kind = _read_class(CheckpointJson.read_if_present(folder / "tokenizer_config.json"), config_json)
        if vocabulary.is_file() and kind is not None and kind.model == "WordPiece":
            return vocabulary
    return None


def build_tokenizer(path: Path, config_json: CheckpointJson) -> Tokenizer:
    """Return the tokenizer that `AutoTokenizer` builds from a file that `find_tokenizer` found.

    Raises:
        CheckpointError: a file is damaged, or has a setting that the export cannot apply.
    """
    folder = path.parent
    settings = CheckpointJson.read_if_present(folder / "tokenizer_config.json")
    for name, expected in _REFUSED_SETTINGS.items():
        if settings.values.get(name):
            raise settings.error(name, expected)
    tokenizer = read_tokenizer_file(path)
    _check_truncation(settings, tokenizer, path)
    parts: Parts = json.loads(tokenizer.to_str())
    # The library corrects ids of added tokens; transformers takes them as they are in the file.
    file_tokens = CheckpointJson.read(path).values.get("added_tokens", []) if path.suffix == ".json" else []
    name, kind = _read_class(settings, config_json)
    # Llama 3 names the class of Llama 2.
    if kind is None or (name == "LlamaTokenizer" and '"ByteLevel"' in path.read_text(encoding="utf-8")):
        tokens = read_token_settings(folder, settings, file_tokens, {}, ())
        tokenizer.add_tokens(tokens.missing_from({token["content"] for token in parts["added_tokens"]}))
        return tokenizer
    if parts["model"]["type"] != kind.model:
        raise CheckpointError(
            f"{path} has a {parts['model']['type']} model, but {name} builds a {kind.model} model: {_SAVE_AGAIN}"
        )
    tokens = read_token_settings(folder, settings, file_tokens, kind.defaults, kind.extra_tokens)
    replaced = kind.replaced_parts(settings, tokens, parts)
    replaced["model"] = parts["model"] | replaced["model"]
    parts |= {"added_tokens": [], "post_processor": None, "normalizer": None, **replaced}
    with refuse_errors(lambda reason: f"{path} does not fit {name} ({reason}): {_SAVE_AGAIN}"):
        tokenizer = Tokenizer.from_str(json.dumps(parts))
        tokenizer.add_tokens(tokens.missing_from(set()))
        if kind.removes_flags:
            tokenizer.add_tokens(tokens.without_flags())
        tokenizer.post_processor = kind.post_processor(settings, tokens, tokenizer)
    return tokenizer


def _check_truncation(settings: CheckpointJson, tokenizer: Tokenizer, path: Path) -> None:
    """Check that long texts lose tokens at their right end; `AutoTokenizer` takes the end from either file."""
    source, side = settings.path, settings.values.get("truncation_side")
    if "truncation_side" not in settings.values:
        source, side = path, (tokenizer.truncation or {"direction": "right"})["direction"]
    if side != "right":
        raise CheckpointError(
            f"{source} has the truncation side {side!r}: set truncation_side in {settings.path.name} to 'right', and "
            "let requests choose the side"
        )


def gives_token_types(folder: Path, config_json: CheckpointJson) -> bool:
    """Return whether `AutoTokenizer` gives a model token types; otherwise the model gives all tokens the type 0."""
    settings = CheckpointJson.read_if_present(folder / "tokenizer_config.json")
    names = settings.strings("model_input_names")
    return "token_type_ids" in names if names else _read_class(settings, config_json)[0] in _WITH_TOKEN_TYPES


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json, or a vocab.txt, which has one token a line.

    Raises:
        CheckpointError: the file cannot be read, or has no tokens.
    """
    with refuse_errors(lambda reason: f"{path} cannot be read ({reason}): save the tokenizer again"):
        if path.suffix == ".txt":
            tokenizer = Tokenizer(models.WordPiece(models.WordPiece.read_file(str(path))))
        else:
            tokenizer = Tokenizer.from_file(str(path))
    if not tokenizer.get_vocab():
        raise CheckpointError(f"{path} has no tokens: save the tokenizer again")
    return tokenizer


def _read_class(settings: CheckpointJson, config_json: CheckpointJson) -> tuple[str, TokenizerClass | None]:
    """Return the name of the class and the class; None for a class that keeps all parts of tokenizer.json."""
    of_model_type = _CLASS_OF_MODEL_TYPE[config_json.values["model_type"]]
    if of_model_type == "TokenizersBackend":
        # transformers then ignores the other settings of the class.
        return of_model_type, None
    for source in (settings, config_json):
        name = source.values.get("tokenizer_class")
        if name is not None:
            known = {each + suffix: each for each in _CLASSES for suffix in ("", "Fast")}
            if not isinstance(name, str) or name not in known:
                raise source.error("tokenizer_class", f"it must be one of {', '.join(_CLASSES)}: {_SAVE_AGAIN}")
            return known[name], _CLASSES[known[name]]
    if of_model_type not in _CLASSES:
        raise CheckpointError(f"{settings.path} has no field tokenizer_class, which names the tokenizer: {_SAVE_AGAIN}")
    return of_model_type, _CLASSES[of_model_type]


_SAVE_AGAIN = "save the tokenizer as PreTrainedTokenizerFast, as docs/models.md shows"
# Settings of tokenizer_config.json that must be absent or empty, and what to do otherwise.
_REFUSED_SETTINGS = {
    "auto_map": f"the export does not run code of a checkpoint: {_SAVE_AGAIN}",
    "fast_tokenizer_files": "keep the right file as tokenizer.json, and remove the field",
    **dict.fromkeys(("gguf_file", "init_inputs", "merges", "tokenizer_object", "vocab"), "remove the field"),
    "model_specific_special_tokens": "name the tokens in extra_special_tokens",
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
    replaced_parts=bert_parts,
    post_processor=bert_post_processor,
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
    "RobertaTokenizer": TokenizerClass("BPE", _ROBERTA_TOKENS, roberta_parts, roberta_post_processor),
    "XLMRobertaTokenizer": TokenizerClass("Unigram", _ROBERTA_TOKENS, xlm_roberta_parts, sentencepiece_post_processor),
    "CamembertTokenizer": TokenizerClass(
        "Unigram",
        _ROBERTA_TOKENS,
        camembert_parts,
        sentencepiece_post_processor,
        extra_tokens=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "AlbertTokenizer": TokenizerClass(
        "Unigram",
        {
            "bos_token": "[CLS]",
            "eos_token": "[SEP]",
            "unk_token": "<unk>",
            "sep_token": "[SEP]",
            "pad_token": "<pad>",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        },
        albert_parts,
        albert_post_processor,
    ),
    "DebertaV2Tokenizer": TokenizerClass(
        "Unigram",
        {
            "bos_token": "[CLS]",
            "eos_token": "[SEP]",
            "unk_token": "[UNK]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        },
        deberta_parts,
        bert_post_processor,
    ),
    "MPNetTokenizer": TokenizerClass(
        "WordPiece", _ROBERTA_TOKENS | {"unk_token": "[UNK]"}, bert_parts, mpnet_post_processor
    ),
    "Qwen2Tokenizer": TokenizerClass(
        "BPE",
        dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        qwen2_parts,
        kept_post_processor,
        removes_flags=True,
    ),
    "GemmaTokenizer": TokenizerClass(
        "BPE",
        {name: f"<{name.removesuffix('_token')}>" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        | {"mask_token": "<mask>"},
        gemma_parts,
        kept_post_processor,
    ),
    "LlamaTokenizer": TokenizerClass(
        "BPE", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, llama_parts, kept_post_processor
    ),
    "T5Tokenizer": TokenizerClass(
        "Unigram",
        {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        t5_parts,
        t5_post_processor,
        extra_tokens=tuple(f"<extra_id_{number}>" for number in range(T5_SENTINELS)),
    ),
    "PreTrainedTokenizer": None,
    "TokenizersBackend": None,
}
# Classes that give token types unless tokenizer_config.json says otherwise.
_WITH_TOKEN_TYPES = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")
_CLASS_OF_MODEL_TYPE = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "ernie": "BertTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    # A class for Chinese that this export cannot build; a checkpoint must name another one.
    "roformer": "RoFormerTokenizer",
    "xlm-roberta-xl": "TokenizersBackend",
    "modernbert": "TokenizersBackend",
    "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    # transformers knows no class for this model type; a checkpoint must name one.
    "new": "",
    "qwen3": "Qwen2Tokenizer",
    "gemma3_text": "GemmaTokenizer",
    "t5": "T5Tokenizer",
    "mistral": "TokenizersBackend",
    # transformers knows no class for these model types, and keeps tokenizer.json unless the checkpoint names a class.
    "llama": "PreTrainedTokenizer",
    "eurobert": "PreTrainedTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
