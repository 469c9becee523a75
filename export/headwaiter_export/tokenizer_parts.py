"""The parts of tokenizers, as the classes of `transformers` 5 build them."""

from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer, processors

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.special_tokens import TokenSettings

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


def bert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
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


def roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of RoBERTa's byte-level BPE tokenizer."""
    prefix = settings.flag("add_prefix_space", default=False)
    return {"model": dict(_BYTE_LEVEL_BPE), "pre_tokenizer": _byte_level(add_prefix_space=prefix, use_regex=True)}


def qwen2_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of the byte-level BPE tokenizer of Qwen2 and Qwen3."""
    split = {"type": "Split", "pattern": {"Regex": _QWEN2_PIECES}, "behavior": "Isolated", "invert": False}
    # transformers saves null if the field was missing.
    prefix = settings.values.get("add_prefix_space") is not None and settings.boolean("add_prefix_space")
    bytes_of_pieces = _byte_level(add_prefix_space=prefix, use_regex=False)
    return {
        "model": dict(_BYTE_LEVEL_BPE),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of_pieces]},
        "post_processor": parts["post_processor"],
    }


def gemma_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of Gemma's BPE tokenizer."""
    unknown = {"unk_token": tokens.name("unk_token"), "fuse_unk": True, "byte_fallback": True}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "model": {**_BYTE_LEVEL_BPE, "continuing_subword_prefix": None, "end_of_word_suffix": None, **unknown},
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": split,
        "post_processor": parts["post_processor"],
    }


def llama_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
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


def xlm_roberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of XLM-RoBERTa's Unigram tokenizer."""
    return _sentencepiece_parts(settings, parts, unknown_id=3)


def t5_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
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


def albert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of ALBERT's Unigram tokenizer."""
    kept = _sentencepiece_parts(settings, parts, unknown_id=1)
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
    ]
    if not settings.flag("keep_accents", default=False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.flag("do_lower_case", default=True):
        steps.append({"type": "Lowercase"})
    if kept["normalizer"] is not None:
        steps.append(kept["normalizer"])
    # The class sets its own step before transformers sets that of the file.
    post_processor = parts["post_processor"]
    return {**kept, "normalizer": {"type": "Sequence", "normalizers": steps}, "post_processor": post_processor}


def deberta_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
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


def camembert_parts(settings: CheckpointJson, tokens: TokenSettings, parts: Parts) -> Parts:
    """Return the parts of CamemBERT's Unigram tokenizer."""
    pieces = [piece for piece, _ in parts["model"]["vocab"]]
    unknown = tokens.name("unk_token")
    return _sentencepiece_parts(settings, parts, pieces.index(unknown) if unknown in pieces else 0)


def bert_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts BERT's special tokens around a text."""
    begin, end = tokens.name("cls_token"), tokens.name("sep_token")
    return _template([begin, "$A", end], [f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"], tokenizer)


def sentencepiece_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts the first and the last special token around a text."""
    begin, end = tokens.name("bos_token"), tokens.name("eos_token")
    return _template([begin, "$A", end], [begin, "$A", end, end, "$B", end], tokenizer)


def t5_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts T5's end token after a text."""
    # The class writes this name, whatever the text of the token is.
    end = ("</s>", _token_id(tokenizer, tokens.name("eos_token")))
    return processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[end])


def roberta_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts RoBERTa's special tokens around a text."""
    return _roberta_processing(
        tokens,
        tokenizer,
        trim_offsets=settings.flag("trim_offsets", default=True),
        add_prefix_space=settings.flag("add_prefix_space", default=False),
    )


def albert_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step of tokenizer.json or, without one, the step that puts ALBERT's special tokens around a text."""
    if tokenizer.post_processor is not None:
        return kept_post_processor(settings, tokens, tokenizer)
    # The class writes these names, whatever the texts of the tokens are.
    named = {"[CLS]": tokens.name("cls_token"), "[SEP]": tokens.name("sep_token")}
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, _token_id(tokenizer, text)) for name, text in named.items()],
    )


def mpnet_post_processor(
    settings: CheckpointJson, tokens: TokenSettings, tokenizer: Tokenizer
) -> processors.PostProcessor:
    """Return the step that puts MPNet's special tokens around a text."""
    return _roberta_processing(tokens, tokenizer, trim_offsets=True, add_prefix_space=False)


def kept_post_processor(
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
