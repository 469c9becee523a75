"""Build the tokenizer of a checkpoint as `transformers` 5 does.

`AutoTokenizer` chooses a class by its name. Most classes keep only the vocabulary of tokenizer.json. They build the
other parts from the settings beside it and from their own defaults, whatever tokenizer.json says. The functions that
build these parts, and the table of the classes, are at the end.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, processors

from headwaiter_export.checkpoints.families.model_types import TOKENIZER_CLASSES
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, refuse_errors
from headwaiter_export.checkpoints.tokenizers.special_tokens import TokenSettings, read_token_settings

# The number of sentinel tokens of T5, unless extra_ids says otherwise.
T5_SENTINELS = 100
# The content of a tokenizer.json, or parts of it.
Parts = dict[str, Any]
_BYTE_LEVEL_BPE: Parts = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What Python's `str.split` takes as spaces.
_SPACES = r"[\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_CLIP_PIECES = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class TokenizerClass:
    """How a class of `transformers` builds a tokenizer.

    Attributes:
        model: type of the model in tokenizer.json, whose vocabulary the class keeps.
        defaults: default of each named special token.
        replaced_parts: returns the parts that replace those of tokenizer.json, from the settings, tokens and old parts.
        post_processor: returns the last step, which adds special tokens to a text.
        extra_tokens: default of the special tokens without a name.
        left_stripped: names of special tokens that take the spaces before them, unless a file gives their flags.
        removes_flags: whether the special tokens lose flags such as lstrip.
    """

    model: str
    defaults: Mapping[str, str]
    replaced_parts: Callable[[CheckpointJson, TokenSettings, Parts], Parts]
    post_processor: Callable[[CheckpointJson, TokenSettings, Tokenizer], processors.PostProcessor]
    extra_tokens: tuple[str, ...] = ()
    left_stripped: tuple[str, ...] = ()
    removes_flags: bool = False


def find_tokenizer(folder: Path, config_json: CheckpointJson) -> Path | None:
    """Return the file of a checkpoint's vocabulary: tokenizer.json or, for classes that read it, vocab.txt."""
    path, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    kinds = ("WordLevel",) if path.is_file() else ("WordLevel", "WordPiece")
    with suppress(CheckpointError):
        _, kind = _read_class(CheckpointJson.read_if_present(folder / "tokenizer_config.json"), config_json)
        if vocabulary.is_file() and kind is not None and kind.model in kinds:
            return vocabulary
    return path if path.is_file() else None


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
    name, kind = _read_class(settings, config_json)
    tokenizer = read_tokenizer_file(path, kind.model if kind else "")
    _check_truncation(settings, tokenizer, path)
    parts: Parts = json.loads(tokenizer.to_str())
    # The library corrects ids of added tokens; transformers takes them as they are in the file.
    file_tokens = CheckpointJson.read(path).values.get("added_tokens", []) if path.suffix == ".json" else []
    # Llama 3 names the class of Llama 2.
    if kind is None or (name == "LlamaTokenizer" and '"ByteLevel"' in path.read_text(encoding="utf-8")):
        tokens = read_token_settings(folder, settings, file_tokens, {}, ())
        tokenizer.add_tokens(tokens.missing_from({token["content"] for token in parts["added_tokens"]}))
        return tokenizer
    if parts["model"]["type"] != kind.model:
        raise CheckpointError(
            f"{path} has a {parts['model']['type']} model, but {name} builds a {kind.model} model: {_SAVE_AGAIN}"
        )
    tokens = read_token_settings(folder, settings, file_tokens, kind.defaults, kind.extra_tokens, kind.left_stripped)
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


def read_tokenizer_file(path: Path, model: str = "") -> Tokenizer:
    """Read a tokenizer.json, or the vocab.txt of a WordLevel or WordPiece model, which has one token a line.

    Raises:
        CheckpointError: the file cannot be read, or has no tokens.
    """
    with refuse_errors(lambda reason: f"{path} cannot be read ({reason}): save the tokenizer again"):
        if path.suffix == ".txt" and model == "WordLevel":
            lines = path.read_text(encoding="utf-8").splitlines()
            tokenizer = Tokenizer(models.WordLevel({line.strip(): number for number, line in enumerate(lines)}))
        elif path.suffix == ".txt":
            tokenizer = Tokenizer(models.WordPiece(models.WordPiece.read_file(str(path))))
        else:
            tokenizer = Tokenizer.from_file(str(path))
    if not tokenizer.get_vocab():
        raise CheckpointError(f"{path} has no tokens: save the tokenizer again")
    return tokenizer


def _read_class(settings: CheckpointJson, config_json: CheckpointJson) -> tuple[str, TokenizerClass | None]:
    """Return the name of the class and the class; None for a class that keeps all parts of tokenizer.json."""
    of_model_type = TOKENIZER_CLASSES[config_json.values["model_type"]]
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


def _bert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of BERT's WordPiece tokenizer."""
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


def _roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of RoBERTa's byte-level BPE tokenizer."""
    prefix = settings.flag("add_prefix_space", default=False)
    return {"model": dict(_BYTE_LEVEL_BPE), "pre_tokenizer": _byte_level(add_prefix_space=prefix, use_regex=True)}


def _qwen2_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of the byte-level BPE tokenizer of Qwen2 and Qwen3."""
    split = {"type": "Split", "pattern": {"Regex": _QWEN2_PIECES}, "behavior": "Isolated", "invert": False}
    # transformers saves null if the field was missing.
    prefix = settings.is_true("add_prefix_space")
    bytes_of_pieces = _byte_level(add_prefix_space=prefix, use_regex=False)
    return {
        "model": dict(_BYTE_LEVEL_BPE),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of_pieces]},
        "post_processor": parts["post_processor"],
    }


def _clip_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of CLIP's BPE tokenizer, in which the last piece of a word has a mark."""
    split = {"type": "Split", "pattern": {"Regex": _CLIP_PIECES}, "behavior": "Removed", "invert": True}
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    return {
        "model": {**_BYTE_LEVEL_BPE, "end_of_word_suffix": "</w>", "unk_token": tokens.name("unk_token")},
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, spaces, {"type": "Lowercase"}]},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, _byte_level(add_prefix_space=False, use_regex=True)],
        },
    }


def _esm_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of ESM's tokenizer, which finds the tokens of its vocabulary anywhere in a text.

    Raises:
        CheckpointError: a token has several letters or contains a special token, and may therefore overlap with an
            added token.
    """
    vocabulary = [token for token in parts["model"]["vocab"] if token]
    special = [str(each.content) for each in tokens.named.values() if each is not None]
    for token in vocabulary:
        if len(token) > 1 and not (token.startswith("<") and token.endswith(">")):
            raise CheckpointError(f"vocab.txt has the token {token!r:.99}: the export knows only letters and <names>")
        if inside := [name for name in special if name in token and name != token]:
            raise CheckpointError(f"vocab.txt has the token {token!r:.99}, which contains {inside[0]!r:.99}: remove it")
    # At one place, the longest token counts.
    pieces = "|".join(map(re.escape, sorted(vocabulary, key=len, reverse=True)))
    steps = [(pieces, "Isolated"), (f"{_SPACES}+", "Removed")]
    return {
        "model": {"unk_token": tokens.name("unk_token")},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
                for pattern, behavior in steps
            ],
        },
    }


def _gemma_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of Gemma's BPE tokenizer."""
    unknown = {"unk_token": tokens.name("unk_token"), "fuse_unk": True, "byte_fallback": True}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "model": {**_BYTE_LEVEL_BPE, "continuing_subword_prefix": None, "end_of_word_suffix": None, **unknown},
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": split,
        "post_processor": parts["post_processor"],
    }


def _siglip2_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of SigLIP 2's BPE tokenizer: Gemma's, with texts in lower case."""
    kept = _gemma_parts(settings, tokens, parts)
    return {**kept, "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, kept["normalizer"]]}}


def _llama_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of the BPE tokenizer of Llama 2, which has no unknown token but bytes."""
    prefix = settings.values.get("add_prefix_space") is None or settings.boolean("add_prefix_space")
    scheme = ("always" if settings.values.get("legacy") else "first") if prefix else "never"
    pieces = {"continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True}
    return {
        "model": {**_BYTE_LEVEL_BPE, **pieces},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "post_processor": parts["post_processor"],
    }


def _byte_level(*, add_prefix_space: bool, use_regex: bool) -> Parts:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sentencepiece_parts(settings: CheckpointJson, parts: Parts, unknown_id: int) -> Parts:
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


def _xlm_roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of XLM-RoBERTa's Unigram tokenizer."""
    return _sentencepiece_parts(settings, parts, unknown_id=3)


def _t5_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of T5's Unigram tokenizer.

    Raises:
        CheckpointError: the number of sentinel tokens, such as <extra_id_0>, is not `extra_ids`.
    """
    sentinels = sum("<extra_id_" in str(token.content) for token in tokens.extra)
    if sentinels != (settings.size("extra_ids", least=0) if "extra_ids" in settings.values else T5_SENTINELS):
        raise CheckpointError(
            f"{settings.path} lists {sentinels} special tokens <extra_id_…>, which is not extra_ids (usually "
            f"{T5_SENTINELS}): list all of them in additional_special_tokens"
        )
    return _sentencepiece_parts(replace(settings, values={}), parts, unknown_id=2)


def _rembert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of RemBERT's Unigram tokenizer."""
    kept = _sentencepiece_parts(settings, parts, unknown_id=2)
    steps = _quote_steps()
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    steps += _case_steps(settings, keeps_accents=True, lowers=False)
    if kept["normalizer"] is not None:
        steps.append(kept["normalizer"])
    _, metaspace = kept["pre_tokenizer"]["pretokenizers"]
    return {**kept, "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": metaspace}


def _quote_steps() -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]


def _case_steps(settings: CheckpointJson, *, keeps_accents: bool, lowers: bool) -> list[dict[str, Any]]:
    """Return the steps that remove accents and capitals, given the defaults of a class."""
    steps: list[dict[str, Any]] = []
    if not settings.flag("keep_accents", default=keeps_accents):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.flag("do_lower_case", default=lowers):
        steps.append({"type": "Lowercase"})
    return steps


def _albert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of ALBERT's Unigram tokenizer."""
    kept = _sentencepiece_parts(settings, parts, unknown_id=1)
    steps = [*_quote_steps(), *_case_steps(settings, keeps_accents=False, lowers=True)]
    if kept["normalizer"] is not None:
        steps.append(kept["normalizer"])
    # The class sets its own step before transformers sets that of the file.
    post_processor = parts["post_processor"]
    return {**kept, "normalizer": {"type": "Sequence", "normalizers": steps}, "post_processor": post_processor}


def _deberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of DeBERTa's Unigram tokenizer."""
    pieces = [tuple(each) for each in parts["model"]["vocab"]]
    unknown = (tokens.name("unk_token"), 0.0)
    unknown_id = settings.size("unk_id", least=0) if "unk_id" in settings.values else 1
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}
    normalizers: list[Parts] = [
        spaces,
        {"type": "NFC"},
        {"type": "Strip", "strip_left": False, "strip_right": True},
    ]
    if settings.flag("do_lower_case", default=False):
        normalizers.insert(0, {"type": "Lowercase"})
    prepend_scheme = "always" if settings.flag("add_prefix_space", default=True) else "first"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend_scheme, "split": True}
    pre_tokenizers: list[Parts] = [metaspace]
    if settings.flag("split_by_punct", default=False):
        pre_tokenizers.insert(0, {"type": "Punctuation", "behavior": "Isolated"})
    return {
        "model": {"unk_id": pieces.index(unknown) if unknown in pieces else unknown_id, "byte_fallback": False},
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
    }


def _camembert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of CamemBERT's Unigram tokenizer."""
    pieces = [piece for piece, _ in parts["model"]["vocab"]]
    unknown = tokens.name("unk_token")
    return _sentencepiece_parts(settings, parts, pieces.index(unknown) if unknown in pieces else 0)


def _bert_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts BERT's special tokens around a text."""
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return _template([begin, "$A", end], [f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"], tokenizer)


def _sentencepiece_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts the first and the last special token around a text."""
    begin, end = tokens.name("bos_token"), tokens.name("eos_token")
    return _template([begin, "$A", end], [begin, "$A", end, end, "$B", end], tokenizer)


def _t5_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts T5's end token after a text."""
    # The class writes this name, whatever the text of the token is.
    end = ("</s>", _token_id(tokenizer, tokens.name("eos_token")))
    return processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[end])


def _roberta_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts RoBERTa's special tokens around a text."""
    return _roberta_processing(
        tokens,
        tokenizer,
        trim_offsets=settings.flag("trim_offsets", default=True),
        add_prefix_space=settings.flag("add_prefix_space", default=False),
    )


def _clip_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts CLIP's special tokens around a text."""
    begin, end = tokens.name("bos_token"), tokens.name("eos_token")
    return processors.RobertaProcessing(
        (end, _token_id(tokenizer, end)),
        (begin, _token_id(tokenizer, begin)),
        trim_offsets=False,
        add_prefix_space=False,
    )


def _albert_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step of tokenizer.json or, without one, the step that puts ALBERT's special tokens around a text."""
    if tokenizer.post_processor is not None:
        return _kept_post_processor(settings, tokens, tokenizer)
    # The class writes these names, whatever the texts of the tokens are.
    named = {"[CLS]": tokens.name("cls_token"), "[SEP]": tokens.name("sep_token")}
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, _token_id(tokenizer, text)) for name, text in named.items()],
    )


def _esm_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts ESM's special tokens around a text."""
    begin, end = tokens.name("cls_token"), tokens.name("eos_token")
    return _template([begin, "$A", end], [begin, "$A", end, "$B", end], tokenizer)


def _deberta_v1_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts the special tokens of DeBERTa v1 around a text, and two between the texts of a pair."""
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return _template([begin, "$A", end], [begin, "$A", end, end, "$B", end], tokenizer)


def _mpnet_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts MPNet's special tokens around a text."""
    return _roberta_processing(tokens, tokenizer, trim_offsets=True, add_prefix_space=False)


def _kept_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step of tokenizer.json; `AutoTokenizer` ignores add_bos_token and add_eos_token."""
    kept: processors.PostProcessor = tokenizer.post_processor
    return kept


def _roberta_processing(
    tokens: TokenSettings, tokenizer: Tokenizer, *, trim_offsets: bool, add_prefix_space: bool
) -> processors.PostProcessor:
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return processors.RobertaProcessing(
        (end, _token_id(tokenizer, end)), (begin, _token_id(tokenizer, begin)), trim_offsets, add_prefix_space
    )


def _template(single: list[str], pair: list[str], tokenizer: Tokenizer) -> processors.PostProcessor:
    """Return a post-processor from the template of one text and the template of a pair."""
    special_tokens = [(token, _token_id(tokenizer, token)) for token in dict.fromkeys((single[0], single[-1]))]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None  # every special token was added
    return token_id


def _named(names: str) -> dict[str, str]:
    """Return named special tokens whose texts are their names, such as <bos>."""
    return {f"{name}_token": f"<{name}>" for name in names.split()}


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
_DEBERTA_TOKENS = {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ALBERT_TOKENS = _DEBERTA_TOKENS | {"unk_token": "<unk>", "pad_token": "<pad>"}
_CLASSES: dict[str, TokenizerClass | None] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer"),
        TokenizerClass("BPE", _ROBERTA_TOKENS, _roberta_parts, _roberta_post_processor),
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        "Unigram", _ROBERTA_TOKENS, _xlm_roberta_parts, _sentencepiece_post_processor
    ),
    "CamembertTokenizer": TokenizerClass(
        "Unigram",
        _ROBERTA_TOKENS,
        _camembert_parts,
        _sentencepiece_post_processor,
        extra_tokens=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
        left_stripped=("mask_token",),
    ),
    "AlbertTokenizer": TokenizerClass("Unigram", _ALBERT_TOKENS, _albert_parts, _albert_post_processor),
    "RemBertTokenizer": TokenizerClass("Unigram", _ALBERT_TOKENS, _rembert_parts, _bert_post_processor),
    "DebertaTokenizer": TokenizerClass("BPE", _DEBERTA_TOKENS, _roberta_parts, _deberta_v1_post_processor),
    "DebertaV2Tokenizer": TokenizerClass("Unigram", _DEBERTA_TOKENS, _deberta_parts, _bert_post_processor),
    "EsmTokenizer": TokenizerClass("WordLevel", _named("cls pad eos unk mask"), _esm_parts, _esm_post_processor),
    "MPNetTokenizer": TokenizerClass(
        "WordPiece", _ROBERTA_TOKENS | {"unk_token": "[UNK]"}, _bert_parts, _mpnet_post_processor
    ),
    "Qwen2Tokenizer": TokenizerClass(
        "BPE",
        dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        _qwen2_parts,
        _kept_post_processor,
        removes_flags=True,
    ),
    "CLIPTokenizer": TokenizerClass(
        "BPE",
        {**dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"), "bos_token": "<|startoftext|>"},
        _clip_parts,
        _clip_post_processor,
    ),
    "GemmaTokenizer": TokenizerClass("BPE", _named("bos eos unk pad mask"), _gemma_parts, _kept_post_processor),
    "Siglip2Tokenizer": TokenizerClass("BPE", _named("bos eos unk pad mask"), _siglip2_parts, _kept_post_processor),
    "LlamaTokenizer": TokenizerClass(
        "BPE", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, _llama_parts, _kept_post_processor
    ),
    "T5Tokenizer": TokenizerClass(
        "Unigram",
        {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        _t5_parts,
        _t5_post_processor,
        extra_tokens=tuple(f"<extra_id_{number}>" for number in range(T5_SENTINELS)),
    ),
    "PreTrainedTokenizer": None,
    "TokenizersBackend": None,
}
# Classes that give token types unless tokenizer_config.json says otherwise.
_WITH_TOKEN_TYPES = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")
