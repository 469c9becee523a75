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
    json_of,
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
# Places of the declaration of a special token of Qwen2.
NAMED_TOKENS: tuple[tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
    ("special_tokens_map.json", "eos_token", lambda token: {"eos_token": token}),
    ("special_tokens_map.json", "image_token", lambda token: {"image_token": token}),
    ("tokenizer_config.json", "eos_token", lambda token: {"eos_token": {"__type": "AddedToken", **token}}),
    (
        "tokenizer_config.json",
        "added_tokens_decoder",
        lambda token: {"eos_token": "[NEW]", "added_tokens_decoder": {"502": token}},
    ),
)
SENTINELS = [f"<extra_id_{number}>" for number in range(100)]
CASES: dict[str, Case] = {
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
    "Unigram of RemBERT": (
        lambda: unigram(compiled_normalizer(), REMBERT_TOKENS),
        "rembert",
        config("RemBertTokenizer"),
    ),
    "Unigram of RemBERT, uncased, without accents": (
        lambda: with_added(unigram(special_tokens=REMBERT_TOKENS)),
        "rembert",
        config("RemBertTokenizerFast", do_lower_case=True, keep_accents=False, add_prefix_space=False),
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
    "RoFormer with a class": (word_piece, "roformer", config(FAST)),
    "DistilBERT, no settings": (lambda: word_piece(lowercase=False), "distilbert", {}),
    # transformers ignores the classes of these two families.
    "XLM-RoBERTa-XL": (lambda: unigram(normalizers.NFKC()), "xlm-roberta-xl", config(XLM)),
    "ModernBERT with a class of BERT": (byte_level_bpe, "modernbert", config("BertTokenizer")),
    "ModernBERT": (byte_level_bpe, "modernbert", config(FAST)),
    "Nomic BERT": (lambda: word_piece(lowercase=False), "nomic_bert", {}),
    "Nomic BERT, cased": (
        lambda: word_piece(lowercase=False),
        "nomic_bert",
        config("BertTokenizer", do_lower_case=False),
    ),
    "GTE, multilingual": (lambda: unigram(normalizers.NFKC()), "gte", {}),
    "GTE, English": (word_piece, "gte", config("BertTokenizer")),
    "Qwen3": (qwen2, "qwen3", config("Qwen2Tokenizer", eos_token="<|im_end|>", unk_token=None)),
    "Qwen3 with a prefix": (qwen2, "qwen3", config(add_prefix_space=True)),
    "Qwen3 with null": (qwen2, "qwen3", config(add_prefix_space=None)),
    "Qwen3, tokens off": (qwen2, "qwen3", config(add_bos_token=False, add_eos_token=False)),
    "Qwen3, tokens on": (qwen2, "qwen3", config(add_bos_token=True, add_eos_token=True, bos_token="<s>")),
    "Qwen3 without tokens": (byte_level_bpe, "qwen3", config("Qwen2TokenizerFast")),
    "Qwen3 with a class of Llama": (llama, "qwen3", config("LlamaTokenizer")),
    "Qwen2": (qwen2, "qwen2", config("Qwen2TokenizerFast")),
    "CLIP, kept": (clip, "clip_text_model", {}),
    "CLIP": (clip, "clip_text_model", config("CLIPTokenizer", do_lower_case=False, pad_token="!")),
    "CLIP, another end": (clip, "clip_text_model", config("CLIPTokenizerFast", eos_token="!", unk_token="a")),
    "CLIP with added tokens": (lambda: with_added(clip()), "clip_text_model", config("CLIPTokenizer")),
    "Gemma 3": (gemma, "gemma3_text", config("GemmaTokenizer", add_bos_token=True, mask_token="<mask>")),
    "Gemma 3 without steps": (
        lambda: edited(gemma(), normalizer=None, pre_tokenizer=None),
        "gemma3_text",
        config(extra_special_tokens={"boi_token": "[B]"}),
    ),
    "SigLIP 2": (gemma, "siglip2_text_model", config("Siglip2Tokenizer")),
    "SigLIP 2 with added tokens": (
        lambda: with_added(gemma()),
        "siglip_text_model",
        config("Siglip2Tokenizer", mask_token="[NEW]"),
    ),
    "EuroBERT": (byte_level_bpe, "eurobert", config(FAST)),
    "DeBERTa v1 without a class": (deberta, "deberta", {}),
    "DeBERTa v1": (deberta, "deberta", config("DebertaTokenizerFast", add_prefix_space=True)),
    "DeBERTa v1 with added tokens": (lambda: with_added(deberta()), "deberta", config("DebertaTokenizer")),
    "EuroBERT without a class": (byte_level_bpe, "eurobert", {}),
    "Llama without a class": (llama, "llama", {}),
    "Llama 2": (llama, "llama", config("LlamaTokenizer", add_bos_token=True, legacy=False)),
    "Llama 2, legacy": (llama, "llama", config("LlamaTokenizerFast", legacy=True, add_eos_token=True)),
    "Llama 2 without a prefix": (
        llama,
        "llama",
        config("LlamaTokenizer", add_prefix_space=False, unk_token="<pad>"),
    ),
    "Llama 2 with added tokens": (
        lambda: with_added(llama()),
        "llama",
        config("LlamaTokenizer", legacy=None, add_prefix_space=None),
    ),
    "Llama 3": (byte_level_bpe, "llama", config(FAST)),
    "Llama 3 with a class of Llama 2": (byte_level_bpe, "llama", config("LlamaTokenizer")),
    "Mistral": (llama, "mistral", config("LlamaTokenizer", legacy=False)),
    "Mistral without a class": (llama, "mistral", {}),
    "T5 without a class": (t5, "t5", {}),
    "T5": (t5, "t5", config("T5Tokenizer", extra_ids=100, additional_special_tokens=SENTINELS)),
    "T5 with ten sentinels": (
        t5,
        "t5",
        config("T5TokenizerFast", extra_ids=10, additional_special_tokens=SENTINELS[:10]),
    ),
    "T5, another end": (t5, "t5", config("T5Tokenizer", add_prefix_space=False, eos_token="<pad>")),
    "T5, extra tokens": (t5, "t5", config(extra_ids=100, extra_special_tokens=SENTINELS)),
    "T5 kept": (t5, "t5", config(FAST)),
    # The special tokens of Qwen2 lose their flags.
    **{
        f"Qwen3, {flag} of {field} in {file}": (
            qwen2,
            "qwen3",
            {file: named({**ADDED, "content": "[NEW]", flag: True})},
        )
        for file, field, named in NAMED_TOKENS
        for flag in ("lstrip", "rstrip", "single_word")
    },
}
# Cases of a vocabulary in vocab.txt, without tokenizer.json.
LINES: dict[str, Case] = {
    "BERT": (word_piece, "bert", {}),
    "BERT, cased": (lambda: word_piece(lowercase=False), "bert", config(do_lower_case=False)),
    "BERT, token files": (
        word_piece,
        "bert",
        {"special_tokens_map.json": {"mask_token": "[NEW]"}, "added_tokens.json": {"a": 285}},
    ),
    "BERT, declared tokens": (word_piece, "bert", config(added_tokens_decoder=DECLARED, unk_token="[MASK]")),
    "DistilBERT": (word_piece, "distilbert", config("DistilBertTokenizer")),
    "ELECTRA": (word_piece, "electra", {}),
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
