"""Turns texts into token ids with the bundle's own tokenizer."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_server.errors import InvalidInput, SequenceTooLong

# A token of running text is some 4 characters; no text within its tokens is near this.
_CHARACTERS_PER_TOKEN = 64
_SLICE_CHARACTERS = 1 << 16


class TextEncoder:
    """A tokenizer with the model's text maximum."""

    def __init__(self, file: Path, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self._max_tokens = max_tokens

    def encode(self, texts: Sequence[str], max_total_tokens: int) -> list[NDArray[np.int64]]:
        """Return the token ids [n_i] of each text, special tokens included.

        Args:
            texts: the texts.
            max_total_tokens: where to stop: what is beyond it together is not tokenised to its end.

        Raises:
            InvalidInput: a text is empty.
            SequenceTooLong: a text has more tokens than the model takes.
        """
        for index, text in enumerate(texts):
            if not text.strip():
                raise InvalidInput(
                    f"texts.values[{index}] is empty: a text needs at least one word", sequence=index, field="texts"
                )
            if len(text) > self._max_tokens * _CHARACTERS_PER_TOKEN:
                raise self._too_long(index, f"{len(text)} characters", None)
        sequences: list[NDArray[np.int64]] = []
        total_tokens = 0
        for some in _slices(texts):
            # The tokenizer lets go of Python's lock meanwhile, and spreads several texts over the cores.
            for encoding in self._tokenizer.encode_batch_fast(some):
                ids = np.array(encoding.ids, np.int64)
                if len(ids) > self._max_tokens:
                    raise self._too_long(len(sequences), f"{len(ids)} tokens", len(ids))
                sequences.append(ids)
                total_tokens += len(ids)
            if total_tokens > max_total_tokens:
                break
        return sequences

    def strings(self, ids: NDArray[np.generic]) -> list[str]:
        """Return the tokens of ids [n] as the vocabulary spells them, with its marks of word parts and spaces."""
        return [self._tokenizer.id_to_token(int(one)) or "" for one in ids]

    def _too_long(self, index: int, size: str, tokens: int | None) -> SequenceTooLong:
        return SequenceTooLong(
            f"texts.values[{index}] has {size}, and the model takes texts of at most {self._max_tokens} tokens, "
            "special tokens included: shorten or split it",
            sequence=index,
            field="texts",
            limit=self._max_tokens,
            actual=tokens,
        )


def _slices(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in order, some at a time, so that what is wrong with one is found before all are tokenised."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if characters >= _SLICE_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some
