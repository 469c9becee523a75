"""Check that a regular expression of a tokenizer takes time in proportion to the text.

Oniguruma, which runs these expressions, backtracks. It reads each character a bounded number of times if nothing that
follows a repetition can fail: no such expression gives back characters that a repetition has read.
"""

import re
from dataclasses import dataclass
from math import inf

# Far above the patterns that real tokenizers have.
_MAX_CHARACTERS = 4000
_MAX_DEPTH = 20
# The most characters that an expression may compare at one place of the text before a repetition. Real tokenizers have
# 40.
_MAX_STEPS = 2000
# A repetition of at most this many characters counts as so many steps and ways instead.
_MAX_COUNT = 16
# Patterns of GPT-2, Llama 3 and Qwen2, and GPT-4o. The first gives back one character at most. In the others, the
# second alternative matches the whole run of characters in which the first one fails.
_WORD_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LINEAR = (
    r"\s+(?!\S)",
    r"\s*[\r\n]+|\s+(?!\S)",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_WORD_END}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_WORD_END}",
)
# Everything else has no form that this module knows, such as references to groups, conditions, comments and calls.
_ESCAPE = re.compile(
    r"\\(?:[dDwWsShHbBAzZtnrfae]|[pP]\{\^?\w+\}|x[0-9a-fA-F]{1,2}|x\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|\W)"
)
_LITERAL = re.compile(r"[^\\\[(){|?*+]")
_GROUP = re.compile(r"\((?:\?(?:(?P<look><?[=!])|>|[im]*(?:-[im]+)?:)|(?!\?|\*))")
_QUANTIFIER = re.compile(r"([?*+])[?+]?|\{(\d{0,9})(,?)(\d{0,9})\}")


@dataclass(frozen=True)
class _Part:
    """A part of an expression.

    Attributes:
        steps: the most characters that the part may compare before a repetition.
        ways: the most ways in which the part may match before a repetition.
        repeats: whether the part has a repetition of many characters.
        optional: whether the part also matches nothing, and thus cannot fail.
    """

    steps: int = 1
    ways: int = 1
    repeats: bool = False
    optional: bool = False


class _Refused(Exception):
    """The expression is not linear, or of an unknown form."""


def pattern_problem(pattern: str) -> str | None:
    """Return why a regular expression might take more time than in proportion to the text, or None."""
    if len(pattern) > _MAX_CHARACTERS:
        return f"it has a pattern of {len(pattern):,} characters, and at most {_MAX_CHARACTERS:,} are allowed"
    reader = _Reader(pattern)
    try:
        if reader.alternatives(0).steps > _MAX_STEPS:
            raise _Refused("has too many ways to match")
        if reader.position < len(pattern):
            raise _Refused("has a form that this check does not know")
    except _Refused as refused:
        return f"its pattern {pattern[:100]!r} {refused} near {pattern[reader.position :][:20]!r}"
    return None


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.position = 0

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self.position)
        if found:
            self.position = found.end()
        return found

    def alternatives(self, depth: int) -> _Part:
        """Read alternatives up to the end of their group."""
        if depth > _MAX_DEPTH:
            raise _Refused("has too many groups in each other")
        parts = [self._alternative(depth)]
        while self._pattern.startswith("|", self.position):
            self.position += 1
            parts.append(self._alternative(depth))
        return _Part(
            sum(part.steps for part in parts),
            sum(part.ways for part in parts),
            any(part.repeats for part in parts),
            any(part.optional for part in parts),
        )

    def _alternative(self, depth: int) -> _Part:
        for known in () if depth else _LINEAR:
            end = self.position + len(known)
            if self._pattern.startswith(known, self.position) and self._pattern[end : end + 1] in ("", "|"):
                self.position = end
                return _Part(repeats=True)
        steps, ways, repeats, optional = 0, 1, False, True
        while self._pattern[self.position : self.position + 1] not in ("", "|", ")"):
            begin = self.position
            part = self._repeated(depth)
            if repeats and not part.optional:
                self.position = begin
                raise _Refused("gives back characters of a repetition")
            steps, ways = steps + ways * part.steps, ways * part.ways
            repeats, optional = repeats or part.repeats, optional and part.optional
        return _Part(steps, ways, repeats, optional)

    def _repeated(self, depth: int) -> _Part:
        """Read a character, a class or a group, with its quantifier."""
        begin = self.position
        part, is_group = self._single(depth)
        if not (quantifier := self._take(_QUANTIFIER)):
            return part
        sign, low, comma, high = quantifier.groups()
        if sign:
            least, most = {"?": (0, 1), "*": (0, inf), "+": (1, inf)}[sign]
        elif low or high:
            least, most = int(low or 0), (float(high) if high else inf if comma else int(low))
        else:
            raise _Refused("has a form that this check does not know")
        if self._take(_QUANTIFIER) or not least <= most:
            raise _Refused("has a form that this check does not know")
        if least > (1 if is_group else _MAX_COUNT):
            self.position = begin
            raise _Refused("may fail after many repetitions")
        optional = part.optional or not least
        if most <= 1 or (most <= _MAX_COUNT and not is_group):
            return _Part(part.steps * int(most), part.ways + int(most - least), part.repeats, optional)
        return _Part(part.steps * (least + 1), part.ways + 1, True, optional)

    def _single(self, depth: int) -> tuple[_Part, bool]:
        if group := self._take(_GROUP):
            part = self.alternatives(depth + 1)
            if not self._pattern.startswith(")", self.position):
                raise _Refused("has a form that this check does not know")
            self.position += 1
            if not group["look"]:
                return part, True
            if part.repeats:
                raise _Refused("looks at more than a few characters")
            return _Part(part.steps), True
        if not self._class() and not self._take(_ESCAPE) and not self._take(_LITERAL):
            raise _Refused("has a form that this check does not know")
        return _Part(), False

    def _class(self) -> bool:
        """Read a class of characters, which may contain others."""
        depth = 0
        while True:
            character = self._pattern[self.position : self.position + 1]
            if not depth and character != "[":
                return False
            if character == "\\":
                if not self._take(_ESCAPE):
                    raise _Refused("has a form that this check does not know")
                continue
            if character == "" or self._pattern.startswith(("[]", "[^]"), self.position):
                raise _Refused("has a form that this check does not know")
            depth += (character == "[") - (character == "]")
            self.position += 1
            if not depth:
                return True
