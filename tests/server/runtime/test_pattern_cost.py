"""Patterns of real tokenizers are accepted, and patterns that could take more than linear time are refused."""

import time

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from headwaiter_server.runtime.pattern_cost import pattern_problem

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


@pytest.mark.parametrize("name", _LINEAR)
def test_a_pattern_of_a_real_tokenizer_is_accepted_and_takes_linear_time(name: str) -> None:
    assert pattern_problem(_LINEAR[name]) is None
    split = Split(Regex(_LINEAR[name]), "isolated")
    for character in "aAǅé1 \n!'~字":
        started_s = time.thread_time()
        split.pre_tokenize_str(character * 20_000 + "x")
        split.pre_tokenize_str(character * 20_000 + "~")
        # A quadratic pattern takes a second.
        assert time.thread_time() - started_s < 0.4, character


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\w+)+$", r"(\d+)+$", r"(\x71+)+$", r"([[:upper:]]+)+$", r"([^a-y]+)+$", r"(\x71|\x71)*$", r"(\S+)+ $",
        r"\x71(?=.*\x7e)", r"(?<!a{40})b", r"a.*b", r"\w+\b", r" +\z", r"a{0,30}b", r"a{5000}b", "(?:a?a){60}",
        "a?" * 30 + "a" * 30, "(?:a|a)" * 30 + "b", "a?" * 9 + "a" * 999 + "b", "(?:a+b|c)*", "(?:(?:ab)*c)?d",
        # Known parts of patterns are linear only as whole alternatives, and with the alternative that follows.
        r"\s*[\r\n]+", r"\s*[\r\n]+|\s|\s+(?!\S)", r"(?:\s+(?!\S))*b", r"\s+(?!\S)b",
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_linear_is_refused(pattern: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None
    assert repr(pattern[:100]) in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1", r"(?<n>a\g<n>?)", "(?~ab)", "(?(1)a|b)", "(?x)a", "a(?i)b|c", "(?#]", r"[\c]](a+)+$", "[]a]", "[a",
        "a**b", "a{3}{40}{50}", "a{,}", "*a", "(*FAIL)", "(a", "a)", "a{2,1}", "(" * 30 + ")" * 30, "a" * 5000, r"\X+",
    ],
)  # fmt: skip
def test_a_pattern_of_an_unknown_form_is_refused(pattern: str) -> None:
    assert pattern_problem(pattern)
