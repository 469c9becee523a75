"""Check that the time and the tokens of a tokenizer grow in proportion to the text.

The export and the server share this check. It takes any tokenizer of the package `tokenizers`, without importing it.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from headwaiter_server.runtime.errors import one_line
from headwaiter_server.runtime.pattern_cost import pattern_problem

# Steps that lengthen the text multiply each other, so forty steps of a few bytes would make a text of terabytes.
_MAX_GROWTH = 256
_STEPS = ("normalizer", "pre_tokenizer", "post_processor")
# WordPiece looks up all parts of a word, and Unigram follows its longest piece from each character. Words of BERT have
# at most 100 characters, pieces of SentencePiece 16.
_MAX_WORD_CHARACTERS = 200
_MAX_PIECE_CHARACTERS = 256
_MAX_LITERAL_CHARACTERS = 1000
_SEQUENCES = ("normalizers", "pretokenizers", "processors")
# These steps may replace a character by several.
_LENGTHENING = {"ByteLevel": 4, "Precompiled": 4}
# The slowest tokenizer that was measured takes 2.4e-6 s for a character, and a quadratic one exceeds this at the
# largest size. The time is that of the processor, and the shortest of three runs counts, unless one takes four times
# the limit.
_BASE_S = 0.05
_CHARACTER_S = 2e-5
_RUNS = 3
_CERTAIN = 4
_TOKENS_PER_CHARACTER = 64
_BASE_TOKENS = 1024
_SIZES = (1, 16, 32, 64, 256, 1024)
_LARGE_SIZES = (4096, 16_384, 65_536)
_PARTS = ("the quick brown fox 12 times; ", "a", " ", "1", "!", "\n", "é")
# A backtracking pattern is slow on a text of its own characters that it almost matches.
_MAX_PATTERN_PARTS = 64
_ENDS = ("", "!", "z")
# A panic prints its message to standard error even if it is caught; if the user has set this variable, it also prints
# dozens of lines of a backtrace. The library reads the variable at the first panic.
os.environ["RUST_BACKTRACE"] = "0"


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a RuntimeError instead of a panic of the library `tokenizers`, which is no Exception."""
    try:
        yield
    except BaseException as error:
        # The class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(one_line(error)) from None


def cost_problem(tokenizer: Any) -> str | None:
    """Return what is wrong with the cost of a `tokenizers.Tokenizer` that neither pads nor truncates, or None.

    The form of the tokenizer is checked first, because no set of texts reveals every costly form. Then texts grow from
    one character, and the check ends with the first text that costs too much.
    """
    with panics_as_errors():
        states = [getattr(tokenizer, step) for step in _STEPS]
        steps = [json.loads(state.__getstate__()) for state in states if state is not None]
    if prod(map(_growth, steps)) > _MAX_GROWTH:
        return f"its steps may make a text more than {_MAX_GROWTH} times as long"
    patterns = [pattern for step in steps for pattern in _patterns(step)]
    if problem := _form_problem(tokenizer, patterns):
        return problem
    parts = list(dict.fromkeys(part for _, pattern in patterns for part in _parts(pattern)))
    texts: list[tuple[str, str, tuple[int, ...]]] = [
        (part, end, _SIZES) for part in parts[:_MAX_PATTERN_PARTS] for end in _ENDS
    ]
    texts += [(part, "", (*_SIZES, *_LARGE_SIZES)) for part in _PARTS]
    for part, end, sizes in texts:
        for size in sizes:
            text = (part * (size // len(part) + 1))[:size] + end
            if problem := _problem_with(tokenizer, text):
                return f"{problem} for a text of {size:,} characters like {part[:20]!r}"
    return None


def _form_problem(tokenizer: Any, patterns: list[tuple[str, str]]) -> str | None:
    """Return which part of the tokenizer takes more time than in proportion to the text, or None."""
    characters = getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if characters > _MAX_WORD_CHARACTERS:
        return f"it has max_input_chars_per_word {characters:,}, and at most {_MAX_WORD_CHARACTERS} are allowed"
    if type(tokenizer.model).__name__ == "Unigram":
        longest = max(map(len, tokenizer.get_vocab(with_added_tokens=False)), default=0)
        if longest > _MAX_PIECE_CHARACTERS:
            return f"it has a piece of {longest:,} characters, and at most {_MAX_PIECE_CHARACTERS} are allowed"
    for kind, pattern in patterns:
        if kind == "Regex" and (problem := pattern_problem(pattern)):
            return problem
        if kind == "String" and len(pattern) > _MAX_LITERAL_CHARACTERS:
            return f"it has a text of {len(pattern):,} characters as pattern, above {_MAX_LITERAL_CHARACTERS:,}"
    return None


def _problem_with(tokenizer: Any, text: str) -> str | None:
    limit_s = _BASE_S + _CHARACTER_S * len(text)
    for _ in range(_RUNS):
        started_s = time.thread_time()
        try:
            with panics_as_errors():
                tokens = len(tokenizer.encode(text))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            return f"it fails ({one_line(error)[:200]})"
        seconds = time.thread_time() - started_s
        if tokens > _BASE_TOKENS + _TOKENS_PER_CHARACTER * len(text):
            return f"it gives {tokens:,} tokens"
        if seconds <= limit_s:
            return None
        if seconds > _CERTAIN * limit_s:
            break
    return f"it takes {seconds:.2g} s of processor time"


def _growth(step: Any) -> float:
    """Return how many times as long a step may make a text, for steps that can be repeated without an end."""
    for name in _SEQUENCES:
        if isinstance(step.get(name), list):
            return prod(map(_growth, step[name]))
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step["pattern"], len(step["content"])
        return max(1.0, content / len(pattern["String"])) if pattern.get("String") else 1.0 + content
    if kind == "Prepend":
        return 1.0 + len(step["prepend"])
    if kind == "TemplateProcessing":
        names = [str(piece["Sequence"]["id"]) for piece in step["single"] if "Sequence" in piece]
        return max(map(names.count, names), default=1)
    return _LENGTHENING.get(str(kind), 1)


def _patterns(step: Any) -> Iterator[tuple[str, str]]:
    """Yield the patterns of a step and of its parts, each with its kind, Regex or String."""
    if isinstance(step, list):
        for part in step:
            yield from _patterns(part)
    elif isinstance(step, dict):
        for name, part in step.items():
            if name in ("Regex", "String") and isinstance(part, str):
                yield name, part
            else:
                yield from _patterns(part)


def _parts(pattern: str) -> Iterator[str]:
    """Yield texts that a pattern may match if they are repeated."""
    literal = re.sub(r"\\.|[^\w ]", "", pattern)[:100]
    yield from filter(None, (pattern[:100], literal, *literal))
