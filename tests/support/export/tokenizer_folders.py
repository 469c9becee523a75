"""Small trained tokenizers, and random texts in many scripts, to compare tokenizers on."""

import json
import random
import struct
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALBERT_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
REMBERT_TOKENS = ("<pad>", "[CLS]", "<unk>", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_CORPUS = (
    "The Bread is fresh and the bread is good",
    "Two Tables for rain, please: TWO tables for Rain",
    "naïve café Ångström façade naïve café",
    "Straße ﬁne ½ x² İstanbul ışık",
    "Быстрая лиса и БЫСТРАЯ собака",
    "雨が降る 东京 雨 안녕하세요 세계",
    "नमस्ते दुनिया שלום עולם السلام عليكم",
    "it's 5 o'clock, they've gone! (1,234.56)",
)
_RANGES = (
    (0x20, 0x7E, 12), (0xA0, 0x17F, 4), (0x250, 0x2AF, 1), (0x300, 0x36F, 3), (0x370, 0x3FF, 2), (0x400, 0x4FF, 2),
    (0x590, 0x5FF, 1), (0x600, 0x6FF, 1), (0x900, 0x97F, 1), (0xE00, 0xE7F, 1), (0x1E00, 0x1FFF, 1),
    (0x2000, 0x206F, 2), (0x2100, 0x218F, 1), (0x3000, 0x30FF, 2), (0x4E00, 0x4FFF, 2), (0xAC00, 0xACFF, 1),
    (0xFB00, 0xFB4F, 1), (0xFDF0, 0xFDFF, 1), (0xFE00, 0xFE0F, 1), (0xFF00, 0xFFEF, 1), (0x1F300, 0x1F64F, 2),
    (0x1D400, 0x1D4FF, 1), (0x20000, 0x200FF, 1), (0x00, 0x1F, 2), (0x7F, 0x9F, 1), (0xE000, 0xE00F, 1),
    (0x10FFF0, 0x10FFFF, 1),
)  # fmt: skip
_PIECES = (
    " ", "  ", " " * 30, "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200d", "\u2028", "'s", "'ll", "...",
    "##s", "▁a", "Ġb", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[cls]", "<s>", "</s>", "<mask>", "<S>", "<unk>NOTUSED",
    "[NEW]", "[new]", "<extra>", "Added", "added", "👩‍👧", "👍🏽", "🇩🇪", "e\u0301", "a\u0300\u0323", "ﷺ", "ﬁ", "x",
    "aaaaaaaaaaaaaaa" * 8, "MKTAYIAKQRQISFVK", "<null_1>2><null_1>2", "\x1c", "\x85",
)  # fmt: skip


def random_texts(count: int) -> list[str]:
    """Return texts of words, pieces and characters of many scripts; the same for the same count."""
    rng = random.Random(count)
    words = " ".join(_CORPUS).split()
    weights = [weight for *_, weight in _RANGES]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.35:
                parts.append(rng.choice((str, str.upper, str.lower))(rng.choice(words)))
            elif kind < 0.6:
                parts.append(rng.choice(_PIECES))
            else:
                first, last, _ = rng.choices(_RANGES, weights)[0]
                parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6))))
        texts.append(rng.choice(("", " ")).join(parts))
    return texts


def mpnet() -> Tokenizer:
    """Return MPNet's tokenizer: BERT's with the special tokens of RoBERTa, except the unknown token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special_tokens = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special_tokens, show_progress=False))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def word_piece(**normalizer: Any) -> Tokenizer:
    """Return BERT's tokenizer, with these settings of its normalizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=[*BERT_TOKENS], show_progress=False))
    tokenizer.post_processor = _template("[CLS]", "[SEP]", tokenizer)
    return tokenizer


def byte_level_bpe(*, add_prefix_space: bool = False, special_tokens: tuple[str, ...] = ROBERTA_TOKENS) -> Tokenizer:
    """Return RoBERTa's tokenizer, or the same with other special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[*special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _train(tokenizer, trainer)
    if special_tokens == ROBERTA_TOKENS:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), add_prefix_space=add_prefix_space
        )
    return tokenizer


def deberta() -> Tokenizer:
    """Return the tokenizer of DeBERTa v1."""
    return byte_level_bpe(special_tokens=("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))


def qwen2() -> Tokenizer:
    """Return the tokenizer of Qwen3-Embedding, which adds a token after each text."""
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
    )
    return tokenizer


def clip() -> Tokenizer:
    """Return the tokenizer of CLIP's texts, which has each byte with and without the mark of the end of a word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    _train(tokenizer, trainer)
    content = json_of(tokenizer)
    vocabulary = content["model"]["vocab"]
    for byte in pre_tokenizers.ByteLevel.alphabet():
        vocabulary.setdefault(f"{byte}</w>", len(vocabulary))
    return Tokenizer.from_str(json.dumps(content))


def esm() -> Tokenizer:
    """Return a tokenizer with the vocabulary of ESM-2, and another token that begins like one of them."""
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>", "<null_1>2>"]
    return Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))


def gemma() -> Tokenizer:
    """Return the tokenizer of EmbeddingGemma."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special_tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    # Texts have other bytes than these, and characters without bytes.
    pieces = [f"<0x{byte:02X}>" for byte in range(200)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special_tokens, *pieces], show_progress=False)
    _train(tokenizer, trainer)
    content = json_of(tokenizer)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special_tokens]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = _template("<bos>", "<eos>", tokenizer)
    return tokenizer


def llama() -> Tokenizer:
    """Return the tokenizer of Llama 2, as older releases of transformers saved it."""
    content = json_of(gemma())
    names = {"<bos>": "<s>", "<eos>": "</s>"}
    content["model"]["vocab"] = {names.get(token, token): number for token, number in content["model"]["vocab"].items()}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    content |= {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None, "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def t5() -> Tokenizer:
    """Return T5's tokenizer, with ten of its sentinel tokens."""
    return unigram(compiled_normalizer(), ("<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(10))))


def unigram(normalizer: Any = None, special_tokens: tuple[str, ...] = ROBERTA_TOKENS) -> Tokenizer:
    """Return XLM-RoBERTa's tokenizer, or those of ALBERT and DeBERTa with their special tokens."""
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=[*special_tokens],
        unk_token="[UNK]" if "[UNK]" in special_tokens else "<unk>",
        show_progress=False,
    )
    _train(tokenizer, trainer)
    begin, end = ("<s>", "</s>") if "<s>" in special_tokens else ("[CLS]", "[SEP]")
    if begin in special_tokens:
        tokenizer.post_processor = _template(begin, end, tokenizer)
    return tokenizer


def word_level(*, lowercase: bool) -> Tokenizer:
    """Return a tokenizer of whole words that no class of `transformers` builds."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    steps = [normalizers.NFKC(), normalizers.Replace(Regex("[0-9]+"), "5")]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if lowercase else steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    _train(tokenizer, trainers.WordLevelTrainer(special_tokens=[*BERT_TOKENS], show_progress=False))
    tokenizer.post_processor = _template("[CLS]", "[SEP]", tokenizer)
    return tokenizer


def compiled_normalizer() -> Any:
    """Return SentencePiece's compiled normalizer with one rule: x becomes y.

    The rule is in a double-array trie of 256 units: the unit of x has the label x, a leaf, and the offset of the leaf.
    """
    units = [0] * 256
    offset = 128
    units[ord("x")] = ord("x") | 1 << 8 | offset << 10
    trie = struct.pack("<256I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"y\0")


def json_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer's file."""
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def edited(tokenizer: Tokenizer, **parts: Any) -> Tokenizer:
    """Return a tokenizer with these parts of its JSON."""
    return Tokenizer.from_str(json.dumps({**json_of(tokenizer), **parts}))


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    """Add tokens whose flags differ, to a tokenizer."""
    tokenizer.add_tokens([AddedToken("Added", normalized=True), AddedToken("[NEW]", lstrip=True, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<extra>", single_word=True)])
    return tokenizer


def with_token_type(tokenizer: Tokenizer) -> Tokenizer:
    """Give all tokens the token type 1."""
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:1", special_tokens=[])
    return tokenizer


def _train(tokenizer: Tokenizer, trainer: Any) -> None:
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)


def _template(begin: str, end: str, tokenizer: Tokenizer) -> Any:
    special_tokens = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    return processors.TemplateProcessing(single=f"{begin} $A {end}", special_tokens=special_tokens)
