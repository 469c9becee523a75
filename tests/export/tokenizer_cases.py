"""Cases of tokenizers: how each is built, the model type of its checkpoint, and the files beside it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from tests.checkpoints import write_json
from tests.export.helpers import edit_json
from tests.export.tokenizer_folders import (
    ALBERT_TOKENS,
    BERT_TOKENS,
    byte_level_bpe,
    compiled_normalizer,
    edited,
    json_of,
    mpnet,
    unigram,
    with_added,
    word_level,
    word_piece,
)

Files = dict[str, dict[str, Any]]

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
CASES: dict[str, tuple[Callable[[], Tokenizer], str, Files]] = {
    "WordPiece uncased, no settings": (word_piece, "bert", {}),
    "WordPiece uncased": (word_piece, "bert", config("BertTokenizer", do_lower_case=True)),
    "WordPiece uncased, settings cased": (word_piece, "bert", config("BertTokenizer", do_lower_case=False)),
    "WordPiece cased": (lambda: word_piece(lowercase=False), "bert", config("BertTokenizerFast", do_lower_case=False)),
    "WordPiece cased, no settings": (lambda: word_piece(lowercase=False), "bert", {}),
    "WordPiece cased, class in config.json": (
        lambda: word_piece(lowercase=False),
        "bert",
        {"config.json": {"tokenizer_class": "BertTokenizer"}},
    ),
    "WordPiece, accents kept": (word_piece, "bert", config(strip_accents=False)),
    "WordPiece cased, accents stripped": (word_piece, "bert", config(do_lower_case=False, strip_accents=True)),
    "WordPiece, Chinese not split": (word_piece, "bert", config("DistilBertTokenizer", tokenize_chinese_chars=False)),
    "WordPiece, other normalizer": (
        lambda: edited(word_piece(), normalizer={"type": "NFC"}, pre_tokenizer={"type": "WhitespaceSplit"}),
        "bert",
        {},
    ),
    "WordPiece, short words": (
        lambda: edited(word_piece(), model={**json_of(word_piece())["model"], "max_input_chars_per_word": 3}),
        "bert",
        {},
    ),
    "WordPiece, other special tokens": (
        word_piece,
        "bert",
        config(cls_token="[MASK]", sep_token="[UNK]", unk_token="[PAD]", mask_token=None),
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
    "WordPiece, no extra tokens": (
        word_piece,
        "bert",
        {"special_tokens_map.json": {"extra_special_tokens": None, "additional_special_tokens": ["[NEW]"]}},
    ),
    "WordPiece, names that are no tokens": (word_piece, "bert", config(add_bos_token="[NEW]", add_eos_token="Added")),
    "WordPiece of ELECTRA": (
        lambda: word_piece(lowercase=False),
        "bert",
        config("ElectraTokenizerFast", do_lower_case=True),
    ),
    "WordPiece of ERNIE, no settings": (lambda: word_piece(lowercase=False), "ernie", {}),
    "WordPiece of MPNet": (mpnet, "bert", config("MPNetTokenizer")),
    "WordPiece of MPNet, cased, accents stripped": (
        lambda: with_added(mpnet()),
        "bert",
        config("MPNetTokenizerFast", do_lower_case=False, strip_accents=True, mask_token="</s>"),
    ),
    "WordPiece kept": (lambda: with_added(word_piece(lowercase=False)), "bert", config(FAST, do_lower_case=True)),
    "byte-level BPE": (byte_level_bpe, "roberta", config("RobertaTokenizer")),
    "byte-level BPE, no settings": (lambda: byte_level_bpe(add_prefix_space=True), "roberta", {}),
    "byte-level BPE, space added": (byte_level_bpe, "roberta", config("RobertaTokenizerFast", add_prefix_space=True)),
    "byte-level BPE, mask and added tokens": (
        lambda: with_added(byte_level_bpe()),
        "roberta",
        config("RobertaTokenizer", mask_token={"__type": "AddedToken", **ADDED, "content": "<mask>", "lstrip": True}),
    ),
    "byte-level BPE with normalizer": (
        lambda: edited(byte_level_bpe(), normalizer={"type": "Lowercase"}),
        "roberta",
        config("RobertaTokenizer"),
    ),
    "byte-level BPE of data2vec, no settings": (lambda: byte_level_bpe(add_prefix_space=True), "data2vec-text", {}),
    "byte-level BPE kept": (
        lambda: edited(byte_level_bpe(add_prefix_space=True), normalizer={"type": "Lowercase"}),
        "bert",
        config(FAST, add_prefix_space=False, unk_token="<unk>", mask_token="<mask>", extra_special_tokens=["[NEW]"]),
    ),
    "Unigram": (unigram, "xlm-roberta", config("XLMRobertaTokenizer")),
    "Unigram of a BERT": (lambda: unigram(normalizers.NFKC()), "bert", config(XLM, model_max_length=512)),
    "Unigram compiled": (lambda: unigram(compiled_normalizer()), "xlm-roberta", {}),
    "Unigram compiled, then lower case": (
        lambda: unigram(normalizers.Sequence([compiled_normalizer(), normalizers.Lowercase()])),
        "xlm-roberta",
        config(add_prefix_space=False),
    ),
    "Unigram with added tokens": (lambda: with_added(unigram(compiled_normalizer())), "xlm-roberta", config(XLM)),
    "Unigram of CamemBERT": (lambda: with_added(unigram()), "camembert", config("CamembertTokenizer")),
    "Unigram of CamemBERT, other extra tokens": (
        unigram,
        "camembert",
        config(additional_special_tokens=["[NEW]"], bos_token="<pad>", unk_token="<mask>"),
    ),
    "Unigram of ALBERT": (
        lambda: unigram(compiled_normalizer(), ALBERT_TOKENS),
        "bert",
        config("AlbertTokenizer"),
    ),
    "Unigram of ALBERT, cased, accents kept": (
        lambda: with_added(unigram(special_tokens=ALBERT_TOKENS)),
        "bert",
        config("AlbertTokenizerFast", do_lower_case=False, keep_accents=True, add_prefix_space=False),
    ),
    "Unigram of ALBERT, the template of the file": (
        lambda: edited(
            unigram(special_tokens=ALBERT_TOKENS), post_processor=json_of(byte_level_bpe())["post_processor"]
        ),
        "bert",
        config("AlbertTokenizer"),
    ),
    "Unigram of DeBERTa": (
        lambda: unigram(compiled_normalizer(), BERT_TOKENS),
        "bert",
        config("DebertaV2Tokenizer"),
    ),
    "Unigram of DeBERTa, lower case, punctuation split": (
        lambda: with_added(unigram(special_tokens=BERT_TOKENS)),
        "bert",
        config("DebertaV2TokenizerFast", do_lower_case=True, split_by_punct=True, add_prefix_space=False),
    ),
    "Unigram of DeBERTa, another unknown token": (
        lambda: unigram(special_tokens=BERT_TOKENS),
        "bert",
        config("DebertaV2Tokenizer", unk_token="[NEW]", unk_id=3, vocab_type="spm", sp_model_kwargs={}),
    ),
    "Unigram kept": (lambda: unigram(normalizers.NFKC()), "bert", config(FAST)),
    "WordLevel cased": (lambda: word_level(lowercase=False), "bert", config(FAST, do_lower_case=True)),
    "WordLevel uncased with added tokens": (
        lambda: with_added(word_level(lowercase=True)),
        "bert",
        config("TokenizersBackend", do_lower_case=False, added_tokens_decoder=DECLARED),
    ),
}


def save_case(name: str, model: Path, folder: Path) -> Path:
    """Save a model with the tokenizer and the settings of a case."""
    build, model_type, files = CASES[name]
    shutil.copytree(model, folder)
    edit_json(folder / "config.json", model_type=model_type, **files.get("config.json", {}))
    build().save(str(folder / "tokenizer.json"))
    for file, content in files.items():
        if file != "config.json":
            write_json(folder / file, content)
    return folder
