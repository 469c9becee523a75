"""Sequences as token ids and as texts: the same tokens for servers that take ids and for servers that take texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from bench.loads.traces import Ids, Trace


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sequence as token ids [n], and the text that the model's tokenizer turns into these ids."""

    ids: Ids
    text: str


def sentences(trace: Trace, tokenizer: Path, seed: int = 0) -> list[Sentence]:
    """Return sentences of random words, with the lengths of a trace.

    The ids of a trace are random, so many of them stand for parts of words, and no text gives them back. Here each id
    is a whole word, between the tokens that begin and end a sequence.

    Raises:
        ValueError: a text has other tokens than its sentence.
    """
    tokenize = Tokenizer.from_file(str(tokenizer))
    tokenize.no_truncation()
    tokenize.no_padding()
    words = sorted(word for word in tokenize.get_vocab() if word.isascii() and word.isalpha())
    drawn, random = [], np.random.default_rng(seed)
    (first, last) = tokenize.encode("").ids
    for ids in trace.sequences:
        chosen = random.choice(words, len(ids) - 2).tolist()
        known = [tokenize.token_to_id(word) for word in chosen]
        drawn.append(Sentence(np.array([first, *known, last]), " ".join(chosen)))
    _check(drawn, tokenize)
    return drawn


def _check(drawn: Sequence[Sentence], tokenize: Tokenizer) -> None:
    for sentence, encoding in zip(drawn, tokenize.encode_batch([each.text for each in drawn]), strict=True):
        if encoding.ids != sentence.ids.tolist():
            raise ValueError(f"the text {sentence.text[:60]!r} has other tokens than its sentence: leave out its words")
