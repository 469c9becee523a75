"""Turns texts into token ids with the bundle's own tokenizer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_proto.rules.inputs import check_texts, text_too_long
from headwaiter_server.errors import Failures

_SLICE_CHARACTERS = 1 << 16


class Truncation(Enum):
    """What happens to a text of too many tokens: it is refused, or cut at one of its ends."""

    ERROR = auto()
    LEFT = auto()
    RIGHT = auto()


@dataclass(frozen=True)
class TextForm:
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
class Tokens:
    """A text as token ids, special tokens included.

    Attributes:
        ids: [n].
        original_tokens: how many there were before the text was cut.
        offsets: [n, 2], where each token begins and ends in the text, in code points; None unless asked for.
    """

    ids: NDArray[np.int64]
    original_tokens: int
    offsets: NDArray[np.int64] | None


class TextEncoder:
    """A tokenizer with the model's text maximum."""

    def __init__(self, file: Path, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self._max_tokens = max_tokens

    def encode(self, texts: Sequence[str], form: TextForm, failures: Failures, max_total_tokens: int) -> list[Tokens]:
        """Return the tokens of each text; none of one that failed.

        Args:
            texts: the texts.
            form: how to tokenise them.
            failures: takes an InvalidInput for a text that is empty, and a SequenceTooLong.
            max_total_tokens: where to stop: what is beyond it together is not tokenised to its end.
        """
        check_texts(texts, self._max_tokens, failures, truncates=form.truncation is not Truncation.ERROR)
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
                    size = f"{tokens.original_tokens} tokens"
                    failures.add(text_too_long(index, size, self._max_tokens, tokens.original_tokens))
                else:
                    found[index] = tokens
                    total_tokens += len(tokens.ids)
            if total_tokens > max_total_tokens:
                break
        return found

    def strings(self, ids: NDArray[np.generic]) -> list[str]:
        """Return the tokens of ids [n] as the vocabulary spells them, with its marks of word parts and spaces."""
        return [self._tokenizer.id_to_token(int(one)) or "" for one in ids]

    def _cut(self, tokens: Tokens, encoding: Any, truncation: Truncation) -> Tokens:
        """Drop tokens from one end of a text that is too long; special tokens stay, as in `transformers`."""
        if tokens.original_tokens <= self._max_tokens or truncation is Truncation.ERROR:
            return tokens
        kept = np.array(encoding.special_tokens_mask, bool)
        words = np.flatnonzero(~kept)
        room = max(0, self._max_tokens - (len(kept) - len(words)))
        kept[words[:room] if truncation is Truncation.RIGHT else words[len(words) - room :]] = True
        return Tokens(
            tokens.ids[kept], tokens.original_tokens, None if tokens.offsets is None else tokens.offsets[kept]
        )


_NONE = Tokens(np.empty(0, np.int64), 0, np.empty((0, 2), np.int64))


def _read(encoding: Any, form: TextForm) -> Tokens:
    """Take the tokens out of what the tokenizer made of a text and its prompt."""
    ids = np.array(encoding.ids, np.int64)
    if not form.offsets:
        return Tokens(ids, len(ids), None)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return Tokens(ids, len(ids), np.maximum(offsets - len(form.prompt), 0))


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
