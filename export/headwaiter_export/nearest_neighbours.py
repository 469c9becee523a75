"""Measure how many sentences have the same nearest neighbour in int8 as in float32.

The sentences come from Python's help pages, so the export needs no data set. A trained model should keep at least
`PROMISED_SHARE` of the neighbours.
"""

import re
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_export.parity import Sequence
from headwaiter_export.text_config import TextConfig
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.numeric_tolerances import normalize_pooled
from headwaiter_server.runtime.packing import pack

# Promised in docs/numerics.md.
PROMISED_SHARE = 0.95
MEASURED_SENTENCES = 1000
# Further sentences, for calibration: neighbours are measured on sentences that calibration has not seen.
CALIBRATION_SENTENCES = 100
_WORDS = range(4, 61)
_BATCH_TOKENS = 512


def help_sentences() -> list[str]:
    """Return distinct English sentences from the help pages that come with Python."""
    paragraphs = (re.sub(r"\s+", " ", each).strip() for page in topics.values() for each in page.split("\n\n"))
    found = (each for paragraph in paragraphs for each in re.split(r"(?<=[.?!]) (?=[A-Z])", paragraph))
    prose = (each for each in found if re.fullmatch(r"[A-Z].*[a-z)][.?!]", each) and len(each.split()) in _WORDS)
    return list(dict.fromkeys(prose))


def tokenized_sentences(text: TextConfig, shortest_tokens: int) -> list[Sequence]:
    """Return token ids of distinct sentences that fit the model, first those to measure, then those to calibrate."""
    tokenizer = Tokenizer.from_str(text.tokenizer)
    distinct = dict.fromkeys(tuple(encoding.ids) for encoding in tokenizer.encode_batch(help_sentences()))
    fitting = [ids for ids in distinct if shortest_tokens <= len(ids) <= text.max_tokens]
    return [np.array(ids) for ids in fitting[: MEASURED_SENTENCES + CALIBRATION_SENTENCES]]


def same_nearest_neighbour(float32: Path, int8: Path, sequences: list[Sequence]) -> float:
    """Return the share of sequences whose nearest neighbour by cosine is the same in both graphs."""
    expected, actual = (_nearest(_pooled_vectors(path, sequences)) for path in (float32, int8))
    return float((expected == actual).mean())


def _pooled_vectors(path: Path, sequences: list[Sequence]) -> NDArray[np.float32]:
    """Return the pooled vectors of the sequences, of unit length, [sequences, width]."""
    graph = EncoderGraph.open(path, "cpu")
    order = np.argsort([len(sequence) for sequence in sequences], kind="stable")
    ends = np.cumsum([len(sequences[i]) for i in order])
    cuts = [0, *np.flatnonzero(np.diff(ends // _BATCH_TOKENS)) + 1, len(order)]
    pooled = [graph.run(pack([sequences[i] for i in order[a:b]]), hidden=False).pooled for a, b in pairwise(cuts)]
    vectors = normalize_pooled(np.concatenate([each for each in pooled if each is not None]), normalized=True)
    return vectors[np.argsort(order)]


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of each vector's nearest other vector."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest
