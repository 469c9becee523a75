"""Tokenizers whose time grows with the text are accepted, and others are refused."""

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import Replace, Sequence
from tokenizers.pre_tokenizers import Split

from headwaiter_export.checkpoints.tokenizers.cost import cost_problem
from tests.support.tiers import exhaustive

_GPT4O_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
_GPT4O = rf"{_GPT4O_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LINEAR = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "GPT-4o": _GPT4O,
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "DeBERTa": r"\s{2,}|[\n\r\t]",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "digits": "[0-9]{3}",
    "words": r"\w+(?:-\w+)*(?:'[a-z]{1,2})?|[^\w\s]+",
    "before capitals": "(?<=[a-z])(?=[A-Z])",
}


def _problem(pattern: str) -> str | None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(pattern), "isolated")
    return cost_problem(tokenizer)


_OTHERS = [name for name in _LINEAR if name not in ("GPT-4o", "words")]


@pytest.mark.parametrize("name", ["GPT-4o", "words", *exhaustive(*_OTHERS)])
def test_a_pattern_of_a_real_tokenizer_is_accepted(name: str) -> None:
    assert _problem(_LINEAR[name]) is None


@pytest.mark.parametrize(
    "pattern",
    [
        # Exponential: the library stops after 10,000,000 steps.
        r"(\w+)+$", r"(\d+)+$", r"(\x71+)+$", r"([[:upper:]]+)+$", r"([^a-y]+)+$", r"(\x71|\x71)*$", r"(\S+)+ $",
        "(?:a?a){60}", "a?" * 30 + "a" * 30, "(?:a|a)" * 30 + "b", "a?" * 9 + "a" * 999 + "b", r"(?:\s+(?!\S))*b",
        # Quadratic.
        r"\x71(?=.*\x7e)", r"a.*b", r" +\z", r"a{5000}b", "(?:a+b|c)*", "(?:(?:ab)*c)?d", "a**b",
        r"\s*[\r\n]+", r"\s*[\r\n]+|\s|\s+(?!\S)", r"\s+(?!\S)b",
        r"https?://\S+ ", r"<[^>]+>", r"\p{L}+\d", r"[A-Z]+(?=[A-Z][a-z])|[a-z]+",
        r"\d+(?:,\d+)*\.\d+", r"[\p{Han}]+。",
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_linear_is_refused(pattern: str) -> None:
    problem = _problem(pattern)
    assert problem is not None
    assert repr(pattern[:100]) in problem
    assert "\n" not in problem


def test_a_pattern_of_a_normalizer_in_a_sequence_is_refused() -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = Sequence([Replace("x", "y"), Replace(Regex(r"\s+$"), "")])
    assert r"'\\s+$'" in (cost_problem(tokenizer) or "")


def test_words_of_word_piece_without_a_limit_are_refused() -> None:
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]", max_input_chars_per_word=8192))
    assert "processor time" in (cost_problem(tokenizer) or "")
