"""The sequences that benchmarks encode: random ids with the log-normal lengths of real text, and real sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Ids = NDArray[np.int64]
_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)
class Trace:
    """Sequences to encode, as token ids [n], and the name of the trace in the tables."""

    name: str
    sequences: Sequence[Ids]

    @property
    def tokens(self) -> int:
        """Number of tokens of all sequences together."""
        return sum(map(len, self.sequences))

    def first(self, tokens: int) -> "Trace":
        """Return the trace cut to its first sequences, with at most this number of tokens."""
        return Trace(self.name, self.sequences[: count_within(self.sequences, tokens)])


def count_within(sequences: Sequence[Ids], tokens: int) -> int:
    """Return the number of first sequences that have at most this number of tokens together."""
    return int(np.searchsorted(np.cumsum([len(ids) for ids in sequences]), tokens, "right"))


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution of lengths, clipped to a range; sigma is the standard deviation of the logarithm."""

    median_tokens: int
    shortest_tokens: int
    longest_tokens: int
    sigma: float = 0.8

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"log-normal, median {self.median_tokens} ({self.shortest_tokens}–{self.longest_tokens})"

    def trace(self, sequences: int, vocabulary_size: int, seed: int = 0) -> Trace:
        """Return a trace of sequences with ids drawn uniformly from the vocabulary."""
        random = np.random.default_rng(seed)
        drawn = random.lognormal(np.log(self.median_tokens), self.sigma, sequences)
        lengths = np.clip(np.rint(drawn), self.shortest_tokens, self.longest_tokens).astype(int)
        return Trace(self.name, [random.integers(0, vocabulary_size, length) for length in lengths])


MEDIAN_30, MEDIAN_90 = LogNormal(30, 4, 256), LogNormal(90, 8, 512)


def real_sentences(sequences: int, tokenizer: Path, longest_tokens: int) -> Trace:
    """Return a trace of tokenised sentences, without those that are longer than the model accepts."""
    tokenize = Tokenizer.from_file(str(tokenizer))
    tokenize.no_padding()
    tokenize.no_truncation()
    ids = [np.array(encoding.ids) for encoding in tokenize.encode_batch(sentences()[:sequences])]
    return Trace("sentences of Python's documentation", [each for each in ids if len(each) <= longest_tokens])


def sentences() -> list[str]:
    """Return the distinct sentences of the language reference that ships with Python, in a fixed random order."""
    prose = [part for topic in sorted(topics) for part in topics[topic].split("\n\n") if not part.startswith(" ")]
    found = (text for part in prose for text in re.split(r"(?<=[.?!])\s+", " ".join(part.split())))
    distinct = sorted({text for text in found if re.fullmatch(r"[A-Z].*\w.*[.?!]", text)})
    Random(0).shuffle(distinct)
    return distinct


def in_groups(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    """Split items, in their order, into groups of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_batches(sequences: Sequence[Ids], tokens: int) -> list[Sequence[Ids]]:
    """Split sequences, in their order, into batches of at most `tokens` tokens."""
    batches: list[list[Ids]] = []
    free_tokens = 0
    for ids in sequences:
        if len(ids) > free_tokens:
            batches.append([])
            free_tokens = tokens
        batches[-1].append(ids)
        free_tokens -= len(ids)
    return [*batches]
