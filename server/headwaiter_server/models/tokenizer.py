"""Turns texts into token ids with the bundle's own tokenizer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_server.errors import Failures, InvalidInput, SequenceTooLong

# A token of running text is some 4 characters; no text within its tokens is near this.
_CHARACTERS_PER_TOKEN = 64
_SLICE_CHARACTERS = 1 << 16


class Truncation(Enum):
    """What happens to a text of too many tokens: it is refused, or cut at one of its ends."""

    ERROR = auto()
    LEFT = auto()
    RIGHT = auto()


@dataclass(frozen=True)
class TokenizeOptions:
    """How texts are tokenised.

    Attributes:
        prompt: goes before each.
        truncation: what to do with one that is too long with its prompt.
        offsets: tell where in the text each token stands.
    """

    prompt: str = ""
    truncation: Truncation = Truncation.ERROR
    offsets: bool = False


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text as token ids, special tokens included.

    Attributes:
        ids: [n].
        original_tokens: how many there were before the text was cut.
        offsets: [n, 2], where each token begins and ends in the text, in code points; None unless asked for.
    """

    ids: NDArray[np.int64]
    original_tokens: int
    offsets: NDArray[np.int64] | None


class BundleTokenizer:
    """A tokenizer with the model's text maximum."""

    def __init__(self, file: Path, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self._max_tokens = max_tokens

    def tokenize(
        self, texts: Sequence[str], form: TokenizeOptions, failures: Failures, max_total_tokens: int
    ) -> list[TokenizedText]:
        """Return the tokens of each text; none of one that failed.

        Args:
            texts: the texts.
            form: how to tokenise them.
            failures: takes an InvalidInput for a text that is empty, and a SequenceTooLong.
            max_total_tokens: where to stop: what is beyond it together is not tokenised to its end.
        """
        self._check(texts, form, failures)
        # The fast one knows no offsets. Either lets go of Python's lock, and spreads several texts over the cores.
        encode_batch = self._tokenizer.encode_batch if form.offsets else self._tokenizer.encode_batch_fast
        found = [_NONE] * len(texts)
        total_tokens = 0
        prompted = {index: form.prompt + text for index, text in enumerate(texts) if index not in failures}
        for indices in _slices(prompted):
            encodings = encode_batch([prompted[index] for index in indices])
            for index, encoding in zip(indices, encodings, strict=True):
                tokens = self._cut(_read(encoding, form), encoding, form.truncation)
                if len(tokens.ids) > self._max_tokens:
                    failures.add(self._too_long(index, f"{tokens.original_tokens} tokens", tokens.original_tokens))
                else:
                    found[index] = tokens
                    total_tokens += len(tokens.ids)
            if total_tokens > max_total_tokens:
                break
        return found

    def token_strings(self, ids: NDArray[np.generic]) -> list[str]:
        """Return the tokens of ids [n] as the vocabulary spells them, with its marks of word parts and spaces."""
        return [self._tokenizer.id_to_token(int(one)) or "" for one in ids]

    def _check(self, texts: Sequence[str], form: TokenizeOptions, failures: Failures) -> None:
        """Look for texts that need no tokenizer to be refused."""
        most_characters = self._max_tokens * _CHARACTERS_PER_TOKEN
        for index, text in enumerate(texts):
            if not text.strip():
                failures.add(
                    InvalidInput(
                        f"texts.values[{index}] is empty: a text needs at least one word", sequence=index, field="texts"
                    )
                )
            elif form.truncation is Truncation.ERROR and len(text) > most_characters:
                failures.add(self._too_long(index, f"{len(text)} characters", None))

    def _cut(self, tokens: TokenizedText, encoding: Any, truncation: Truncation) -> TokenizedText:
        """Drop tokens from one end of a text that is too long; special tokens stay, as in `transformers`."""
        if tokens.original_tokens <= self._max_tokens or truncation is Truncation.ERROR:
            return tokens
        kept = np.array(encoding.special_tokens_mask, bool)
        words = np.flatnonzero(~kept)
        room = max(0, self._max_tokens - (len(kept) - len(words)))
        kept[words[:room] if truncation is Truncation.RIGHT else words[len(words) - room :]] = True
        return TokenizedText(
            tokens.ids[kept], tokens.original_tokens, None if tokens.offsets is None else tokens.offsets[kept]
        )

    def _too_long(self, index: int, size: str, tokens: int | None) -> SequenceTooLong:
        return SequenceTooLong(
            f"texts.values[{index}] has {size}, and the model takes texts of at most {self._max_tokens} tokens, "
            "special tokens and prompt included: shorten, split or truncate it",
            sequence=index,
            field="texts",
            limit=self._max_tokens,
            actual=tokens,
        )


_NONE = TokenizedText(np.empty(0, np.int64), 0, np.empty((0, 2), np.int64))


def _read(encoding: Any, form: TokenizeOptions) -> TokenizedText:
    """Take the tokens out of what the tokenizer made of a text and its prompt."""
    ids = np.array(encoding.ids, np.int64)
    if not form.offsets:
        return TokenizedText(ids, len(ids), None)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return TokenizedText(ids, len(ids), np.maximum(offsets - len(form.prompt), 0))


def _slices(texts: Mapping[int, str]) -> Iterator[list[int]]:
    """Yield the indices of texts in order, some at a time, so that what is wrong with one is found before the end."""
    some: list[int] = []
    characters = 0
    for index, text in texts.items():
        some.append(index)
        characters += len(text)
        if characters >= _SLICE_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some
