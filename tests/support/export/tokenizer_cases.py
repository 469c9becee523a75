"""Cases of tokenizers: how each is built, the model type of its checkpoint, and the files beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from tests.support.checkpoints import write_json
from tests.support.export.tokenizer_folders import (
    ALBERT_TOKENS,
    BERT_TOKENS,
    REMBERT_TOKENS,
    byte_level_bpe,
    clip,
    compiled_normalizer,
    deberta,
    edited,
    esm,
    gemma,
    llama,
    mpnet,
    qwen2,
    t5,
    unigram,
    with_added,
    word_level,
    word_piece,
)

Files = dict[str, dict[str, Any]]
# How the tokenizer is built, the model type, and the files beside tokenizer.json.
Case = tuple[Callable[[], Tokenizer], str, Files]

ADDED: dict[str, Any] = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}


def config(tokenizer_class: str | None = None, **settings: Any) -> Files:
    chosen = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    return {"tokenizer_config.json": {**chosen, **settings}}


DECLARED = {
    "4": {**ADDED, "content": "[MASK]", "lstrip": True, "special": True},
    "400": {**ADDED, "content": "Added", "normalized": True},
    "401": {**ADDED, "content": "[NEW]", "rstrip": True},
}
FAST = "PreTrainedTokenizerFast"
XLM = "XLMRobertaTokenizerFast"
SENTINELS = [f"<extra_id_{number}>" for number in range(100)]
CASES: dict[str, Case] = {
    "WordPiece uncased, no settings": (word_piece, "bert", {}),
    "WordPiece uncased": (word_piece, "bert", config("BertTokenizer", do_lower_case=True)),
    "WordPiece cased, class in config.json": (
        lambda: word_piece(lowercase=False),
        "bert",
        {"config.json": {"tokenizer_class": "BertTokenizer"}},
    ),
    "WordPiece, accents kept": (word_piece, "bert", config(strip_accents=False)),
    "WordPiece, other normalizer": (
        lambda: edited(word_piece(), normalizer={"type": "NFC"}, pre_tokenizer={"type": "WhitespaceSplit"}),
        "bert",
        {},
    ),
    "WordPiece, tokens of tokenizer.json": (lambda: with_added(word_piece()), "bert", config()),
    "WordPiece, declared tokens": (
        lambda: with_added(word_piece()),
        "bert",
        config(added_tokens_decoder=DECLARED, extra_special_tokens=["<extra>"]),
    ),
    "WordPiece, older token files": (
        word_piece,
        "bert",
        {
            **config(additional_special_tokens=["<extra>"]),
            "special_tokens_map.json": {
                "mask_token": {**ADDED, "content": "[MASK]", "lstrip": True},
                "image_token": "[NEW]",
            },
            "added_tokens.json": {"Added": 400, "[NEW]": 401},
        },
    ),
    "WordPiece, extra tokens of both files": (
        word_piece,
        "bert",
        {
            **config(extra_special_tokens=["<extra>"]),
            "special_tokens_map.json": {"extra_special_tokens": ["Added"], "additional_special_tokens": ["[NEW]"]},
        },
    ),
    "WordPiece of MPNet": (mpnet, "bert", config("MPNetTokenizer")),
    "WordPiece kept": (lambda: with_added(word_piece(lowercase=False)), "bert", config(FAST, do_lower_case=True)),
    "byte-level BPE": (byte_level_bpe, "roberta", config("RobertaTokenizer")),
    "byte-level BPE kept": (
        lambda: edited(byte_level_bpe(add_prefix_space=True), normalizer={"type": "Lowercase"}),
        "bert",
        config(FAST, add_prefix_space=False, unk_token="<unk>", mask_token="<mask>", extra_special_tokens=["[NEW]"]),
    ),
    "Unigram": (unigram, "xlm-roberta", config("XLMRobertaTokenizer")),
    "Unigram compiled, then lower case": (
        lambda: unigram(normalizers.Sequence([compiled_normalizer(), normalizers.Lowercase()])),
        "xlm-roberta",
        config(add_prefix_space=False),
    ),
    "Unigram of CamemBERT": (lambda: with_added(unigram()), "camembert", config("CamembertTokenizer")),
    "Unigram of ALBERT": (
        lambda: unigram(compiled_normalizer(), ALBERT_TOKENS),
        "bert",
        config("AlbertTokenizer"),
    ),
    "Unigram of RemBERT": (
        lambda: unigram(compiled_normalizer(), REMBERT_TOKENS),
        "rembert",
        config("RemBertTokenizer"),
    ),
    "Unigram of DeBERTa": (
        lambda: unigram(compiled_normalizer(), BERT_TOKENS),
        "bert",
        config("DebertaV2Tokenizer"),
    ),
    "Unigram kept": (lambda: unigram(normalizers.NFKC()), "bert", config(FAST)),
    "WordLevel cased": (lambda: word_level(lowercase=False), "bert", config(FAST, do_lower_case=True)),
    "RoFormer with a class": (word_piece, "roformer", config(FAST)),
    "DistilBERT, no settings": (lambda: word_piece(lowercase=False), "distilbert", {}),
    # transformers ignores the classes of these two families.
    "XLM-RoBERTa-XL": (lambda: unigram(normalizers.NFKC()), "xlm-roberta-xl", config(XLM)),
    "ModernBERT with a class of BERT": (byte_level_bpe, "modernbert", config("BertTokenizer")),
    "Nomic BERT": (lambda: word_piece(lowercase=False), "nomic_bert", {}),
    "GTE, multilingual": (lambda: unigram(normalizers.NFKC()), "gte", {}),
    "Qwen3": (qwen2, "qwen3", config("Qwen2Tokenizer", eos_token="<|im_end|>", unk_token=None)),
    "Qwen3, tokens on": (qwen2, "qwen3", config(add_bos_token=True, add_eos_token=True, bos_token="<s>")),
    "CLIP, kept": (clip, "clip_text_model", {}),
    "CLIP": (clip, "clip_text_model", config("CLIPTokenizer", do_lower_case=False, pad_token="!")),
    "Gemma 3": (gemma, "gemma3_text", config("GemmaTokenizer", add_bos_token=True, mask_token="<mask>")),
    "SigLIP 2": (gemma, "siglip2_text_model", config("Siglip2Tokenizer")),
    "DeBERTa v1": (deberta, "deberta", config("DebertaTokenizerFast", add_prefix_space=True)),
    "EuroBERT without a class": (byte_level_bpe, "eurobert", {}),
    "Llama 2": (llama, "llama", config("LlamaTokenizer", add_bos_token=True, legacy=False)),
    "Llama 2, legacy": (llama, "llama", config("LlamaTokenizerFast", legacy=True, add_eos_token=True)),
    "Llama 3 with a class of Llama 2": (byte_level_bpe, "llama", config("LlamaTokenizer")),
    "Mistral": (llama, "mistral", config("LlamaTokenizer", legacy=False)),
    "T5": (t5, "t5", config("T5Tokenizer", extra_ids=100, additional_special_tokens=SENTINELS)),
    "T5 kept": (t5, "t5", config(FAST)),
    # The special tokens of Qwen2 lose their flags.
}
# Cases of a vocabulary in vocab.txt, without tokenizer.json.
LINES: dict[str, Case] = {
    "BERT": (word_piece, "bert", {}),
    "BERT, token files": (
        word_piece,
        "bert",
        {"special_tokens_map.json": {"mask_token": "[NEW]"}, "added_tokens.json": {"a": 285}},
    ),
    "BERT, declared tokens": (word_piece, "bert", config(added_tokens_decoder=DECLARED, unk_token="[MASK]")),
    "MPNet": (mpnet, "mpnet", {}),
    "GTE": (word_piece, "gte", config("BertTokenizerFast")),
    "ESM": (esm, "esm", {}),
    "ESM, token files": (
        esm,
        "esm",
        {
            "special_tokens_map.json": {"mask_token": "<mask>", "cls_token": "<eos>", "unk_token": "X"},
            "added_tokens.json": {"[NEW]": 34, "LA": 35},
        },
    ),
    "ESM, declared tokens": (
        esm,
        "esm",
        config(
            "EsmTokenizer",
            added_tokens_decoder={
                "32": {**ADDED, "content": "<mask>", "lstrip": True, "special": True},
                "34": {**ADDED, "content": "[NEW]", "rstrip": True},
            },
            additional_special_tokens=["<extra>"],
        ),
    ),
}


def save_case(case: Case, folder: Path, *, lines: bool = False) -> Path:
    """Save the tokenizer and the settings of a case, and a config.json that has only the model type."""
    build, model_type, files = case
    write_json(folder / "config.json", {"model_type": model_type, **files.get("config.json", {})})
    if lines:
        vocabulary = sorted(build().get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    else:
        build().save(str(folder / "tokenizer.json"))
    for file in files.keys() - {"config.json"}:
        write_json(folder / file, files[file])
    return folder
