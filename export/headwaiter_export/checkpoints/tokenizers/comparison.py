"""Check that a bundle can hold a tokenizer, and that it then gives the ids of `transformers`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, refuse_errors
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer, library_name, unusable
from headwaiter_export.checkpoints.tokenizers.cost import cost_problem
from headwaiter_server.runtime.errors import panics_as_errors

# Texts or pairs of texts, an attribute of their encodings, and the values that are expected.
_Comparison = tuple[Sequence[str] | Sequence[tuple[str, str]], str, list[list[int]]]
# Added tokens beyond this number are not compared: some tokenizers have thousands of unused ones.
_COMPARED_ADDED_TOKENS = 50
_MAX_QUOTED_CHARACTERS = 200
_CONTRADICTION = "the checkpoint contradicts itself"
# The first of these are in plain English.
_PLAIN_PHRASES = 3
_PHRASES = (
    "The bread is fresh.", "It's 5 o'clock; they've gone, we'll wait and I'd say you're right!",
    "HELLO World hELLO", "naïve café, Ångström, façade, coöperate", "Straße GROẞ ﬁne ﬂow Ⅷ ½ x² ①",
    "İstanbul ışık IĞDIR", "Быстрая коричневая лиса", "Ἡ γρήγορη ΑΛΕΠΟΎ ς σ", "שָׁלוֹם עוֹלָם",
    "السَّلَامُ عَلَيْكُمْ ﷺ ١٢٣", "नमस्ते दुनिया क्षि", "สวัสดีชาวโลก", "ສະບາຍດີ", "გამარჯობა", "Բարեւ աշխարհ",
    "ሰላም ልዑል", "வணக்கம் உலகம்", "বাংলা লিপি", "ཁམས་བཟང", "မင်္ဂလာပါ", "សួស្តី", "ᠮᠣᠩᠭᠣᠯ", "Xin chào thế giới",
    "雨が降る、东京。", "ｶﾀｶﾅ ﾊﾝｶｸ Ｆｕｌｌ　ｗｉｄｔｈ １２３", "안녕하세요 각",
    "𠜎𠜱 𝒜𝓁𝑔𝑒 𝟙𝟚 𐍈𐎀", "👩‍👧 👍🏽 🇩🇪 ❤️ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ☺",
    "e\u0301 o\u0308\u0323 a\u0300\u0301\u0302 \u0301x", "1,234.56 €7 $8 №9 −3 3×4≠5",
    "https://example.org/a_b?c=d&e=%20#f me@example.org", "def f(x):\n\treturn x**2  # [0]",
    "snake_case camelCase kebab-case", "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk>",
    "[cls] a[SEP]b <S> <|endoftext|> ##s ▁a Ġb", "pneumonoultramicroscopicsilicovolcanoconiosis", "a" * 120,
    "ab" * 60 + " c", "a b c d e f g h i j k l m n o p", "  two  spaces   three ",
    "\ttab\nline\r\nreturn\x0b\x0c\x85\u2028\u2029end",
    "nbsp\u00a0thin\u2009zero\u200bwidth\u200djoin\ufeffbom\u3000wide",
    "\x00\x01\x1f\x7f\x80 control \ufffd \ue000 \uffff \U0010ffff",
    "soft\u00adhyphen \u202eright-to-left\u202c \u2060", "--...!!??;;::''\"\"``´´‘’“”«»…—–",
    "x" + " " * 100 + "y", "!" * 40, "´ ¨ ¸ ˆ ˜", " ", "\n", ".",
)  # fmt: skip


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Check that a tokenizer always gives the same ids, can encode any text, and gives all tokens the token type 0.

    Also check that the time for a text grows in proportion to the text.

    Raises:
        CheckpointError: the tokenizer fails one of these checks.
    """
    if getattr(tokenizer.model, "dropout", None):
        raise CheckpointError(f"{path} has dropout {tokenizer.model.dropout}, which makes ids random: set it to null")
    # The texts below may take forever with a tokenizer that costs too much.
    if problem := cost_problem(tokenizer):
        raise CheckpointError(f"{path} cannot be served: {problem}: use a tokenizer whose time grows with the text")
    with refuse_errors(lambda reason: f"{path} cannot encode every text ({reason}): save the tokenizer again"):
        encodings = tokenizer.encode_batch(check_texts(()))
    if any(any(encoding.type_ids) for encoding in encodings):
        raise CheckpointError(
            f"{path} gives token types other than 0: use type 0 in the template of the post-processor"
        )


def check_against_transformers(saved: CheckpointTokenizer, *, pairs: bool = False) -> None:
    """Compare the ids of a few hundred texts with those of `transformers`, whose classes may also do work in Python.

    With `pairs`, also compare the ids and the token types of each text with the next one.

    Raises:
        CheckpointError: the ids of a text differ, or `transformers` cannot use the tokenizer.
    """
    folder, tokenizer, reference = saved.folder, saved.tokenizer, saved.reference
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    texts = check_texts(added[:_COMPARED_ADDED_TOKENS])
    with refuse_errors(lambda reason: unusable(folder, reason)):
        comparisons: list[_Comparison] = [(texts, "ids", reference(texts, verbose=False)["input_ids"])]
        if pairs:
            answer, both = reference(texts[:-1], texts[1:], verbose=False), list(pairwise(texts))
            attributes = {"input_ids": "ids", "token_type_ids": "type_ids"}
            comparisons += [(both, attributes[name], answer[name]) for name in attributes if name in answer]
    for inputs, attribute, expected in comparisons:
        with panics_as_errors():
            encodings = tokenizer.encode_batch(inputs)
        for text, encoding, expected_ids in zip(inputs, encodings, expected, strict=True):
            ids = getattr(encoding, attribute)
            if ids != expected_ids:
                raise CheckpointError(
                    f"{folder}: the text {shortened(repr(text))} has token {attribute} {shortened(str(ids))} in the "
                    f"bundle, but {shortened(str(expected_ids))} with {library_name()}: save the tokenizer as "
                    "PreTrainedTokenizerFast, as docs/how-to/export-a-checkpoint.md shows"
                )


def contradictions(saved: CheckpointTokenizer) -> list[str]:
    """Return a line for each setting of a checkpoint that the tokenizer, like `AutoTokenizer`, does not follow."""
    tokenizer, path, lines = saved.tokenizer, saved.path, []
    settings = CheckpointJson.read_if_present(saved.folder / "tokenizer_config.json")
    tokens = tokenizer.encode("a").tokens
    for name, found, place in (("bos_token", tokens[:1], "begin"), ("eos_token", tokens[-1:], "end")):
        token, wanted = settings.values.get(name), settings.values.get(f"add_{name}")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(wanted, bool) and content is not None and (found == [content]) is not wanted:
            lines.append(
                f"{_CONTRADICTION}: {settings.path.name} has add_{name} {wanted}, and texts "
                f"{'do not ' if wanted else ''}{place} with {shortened(repr(content))}, as in transformers 5"
            )
    if saved.alone is not None and _differs(saved.alone, tokenizer):
        lines.append(
            f"{_CONTRADICTION}: {path.name} alone gives other ids than transformers 5, which builds the tokenizer from "
            "its class and from the settings beside the file"
        )
    return lines


def _differs(alone: Tokenizer, tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer of a file alone gives other ids, or none, for texts in plain English."""
    alone.no_truncation()
    alone.no_padding()
    try:
        with panics_as_errors():
            return any(alone.encode(text).ids != tokenizer.encode(text).ids for text in _PHRASES[:_PLAIN_PHRASES])
    except Exception:  # noqa: BLE001 - the library raises nothing more specific
        return True


def check_texts(added_tokens: Iterable[str]) -> list[str]:
    """Return texts for checks: phrases in many scripts and forms, and the added tokens in several contexts."""
    texts = [form for phrase in _PHRASES for form in (phrase, phrase.upper(), phrase.lower(), f" {phrase}\n")]
    texts += [f"{one} {other}" for one, other in pairwise(_PHRASES)]
    for token in added_tokens:
        texts += [token, f"a{token}b", f"a {token} b", f"  {token}  {token}", token.upper(), token.lower()]
    return list(dict.fromkeys(texts))


def shortened(quoted: str) -> str:
    """Return the beginning of a text of another source, for a message."""
    return quoted if len(quoted) <= _MAX_QUOTED_CHARACTERS else f"{quoted[:_MAX_QUOTED_CHARACTERS]} …"
