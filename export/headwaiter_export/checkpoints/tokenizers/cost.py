"""Check that the time and the tokens of a tokenizer grow in proportion to the text, by timing texts that grow."""

import json
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import pairwise
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from headwaiter_server.runtime.errors import one_line, panics_as_errors

# The time is that of the processor, and the shortest of three runs counts, unless one takes four times the limit. A
# limit has a fixed part, and a part for each character.
_RUNS = 3
_CERTAIN = 4
# The slowest tokenizer that was measured takes 2.4e-6 s for a character, and a quadratic one exceeds this at the
# largest size.
_TOKENIZER_S = 0.05, 2e-5
_TOKENS = 1024, 64
_PARTS = ("the quick brown fox 12 times; ", "a", " ", "1", "!", "\n", "é")
_SIZES = (1, 16, 32, 64, 256, 1024, 4096, 16_384, 65_536)
# The patterns of real tokenizers take 3e-7 s for a character, and 3.4e-6 s on a slow and busy machine. For 16,384
# characters, a quadratic pattern takes 0.4 s.
_PATTERN_S = 0.02, 8e-6
_PATTERN_SIZES = (16, 128, 1024, 4096, 16_384)
# A pattern that begins with several characters, such as "https://\S+ ", begins less often in a text.
_LONG_SIZES = (*_PATTERN_SIZES, 65_536)
_CHARACTERS = f"{string.printable}éÉǅ字²٣\u0301\u00a0🙂"
_NO_LITERAL = re.compile(r"\\(?:[pP]\{\^?\w+\}|\w|(\W))|\(\?<?[:=!>]|[][(){}|?*+.^$]")
_MAX_LITERAL_CHARACTERS = 100
_MAX_PAIRS = 32


def cost_problem(tokenizer: Tokenizer) -> str | None:
    """Return what is wrong with the cost of a tokenizer that neither pads nor truncates, or None.

    Texts grow from a few characters, and the check ends with the first text that costs too much.
    """
    with panics_as_errors():
        states = [getattr(tokenizer, step) for step in ("normalizer", "pre_tokenizer")]
        steps = [json.loads(state.__getstate__()) for state in states if state is not None]
    for pattern in dict.fromkeys(_patterns(steps)):
        # Without the other steps, whose time would hide that of the pattern. Removed matches make the shortest list.
        split = pre_tokenizers.Split(Regex(pattern), "removed")
        for part, end in _texts_for(pattern):
            sizes = _PATTERN_SIZES if len(part) == 1 else _LONG_SIZES
            if problem := _growing(split.pre_tokenize_str, part, end, sizes, _PATTERN_S):
                return f"its pattern {pattern[:100]!r} {problem}"
    for part in _PARTS:
        if problem := _growing(tokenizer.encode, part, "", _SIZES, _TOKENIZER_S):
            return f"it {problem}"
    return None


def _growing(
    run: Callable[[str], Sized], part: str, end: str, sizes: Iterable[int], limit_s: tuple[float, float]
) -> str | None:
    """Return what is wrong with a run for texts of growing sizes, which repeat a part and then have an end, or None."""
    for size in sizes:
        text = (part * (size // len(part) + 1))[:size] + end
        if problem := _problem_with(run, text, limit_s[0] + limit_s[1] * len(text)):
            return f"{problem} for a text of {size:,} characters like {part[:20]!r}, and {end[:20]!r}"
    return None


def _problem_with(run: Callable[[str], Sized], text: str, limit_s: float) -> str | None:
    for _ in range(_RUNS):
        started_s = time.thread_time()
        try:
            with panics_as_errors():
                tokens = len(run(text))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            return f"fails ({one_line(error)[:200]})"
        seconds = time.thread_time() - started_s
        if tokens > _TOKENS[0] + _TOKENS[1] * len(text):
            return f"gives {tokens:,} tokens"
        if seconds <= limit_s:
            return None
        if seconds > _CERTAIN * limit_s:
            break
    return f"takes {seconds:.2g} s of processor time"


def _patterns(step: Any) -> Iterator[str]:
    """Yield the regular expressions of a step and of its parts."""
    parts = step.items() if isinstance(step, dict) else enumerate(step) if isinstance(step, list) else ()
    for name, part in parts:
        if name == "Regex" and isinstance(part, str):
            yield part
        else:
            yield from _patterns(part)


def _texts_for(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield parts to repeat, and what follows them, for texts that a pattern almost matches.

    A pattern is slow if it reads a run of characters, fails at what follows, and tries again from each character of the
    run. The library skips texts that lack a character that the pattern needs, so an end has all of them.
    """
    literal = _NO_LITERAL.sub(r"\1", pattern)[:_MAX_LITERAL_CHARACTERS]
    pairs = dict.fromkeys(one + other for one, other in pairwise(literal))
    parts = (*_CHARACTERS, *literal, literal, literal.strip(), *list(pairs)[:_MAX_PAIRS])
    for part in filter(None, dict.fromkeys(parts)):
        for end in ("", "!", "z", f"!{literal}!", "!\n!"):
            yield part, end
