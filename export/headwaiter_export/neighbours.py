"""Whether the nearest neighbour of a sentence stays the same in int8."""

import re
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_export.config import TextConfig
from headwaiter_export.parity import Sequence
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack
from headwaiter_server.runtime.tolerance import normalize_pooled

# What the contract promises of real sentences.
PROMISED_SHARE = 0.95
SENTENCES = 1000
# Further ones, that show how large activations get; neighbours are sought among those that had no say in that.
CALIBRATION_SENTENCES = 100
_WORDS = range(4, 61)
_BATCH_TOKENS = 512


def sentences() -> list[str]:
    """Return English sentences, none of them twice: prose from the help pages that come with Python."""
    paragraphs = (re.sub(r"\s+", " ", each).strip() for page in topics.values() for each in page.split("\n\n"))
    found = (each for paragraph in paragraphs for each in re.split(r"(?<=[.?!]) (?=[A-Z])", paragraph))
    prose = (each for each in found if re.fullmatch(r"[A-Z].*[a-z)][.?!]", each) and len(each.split()) in _WORDS)
    return list(dict.fromkeys(prose))


def token_ids(text: TextConfig, shortest_tokens: int) -> list[Sequence]:
    """Tokenise sentences that the model takes, no two of which are the same to it."""
    tokenizer = Tokenizer.from_str(text.tokenizer)
    found = dict.fromkeys(tuple(encoding.ids) for encoding in tokenizer.encode_batch(sentences()))
    fitting = [ids for ids in found if shortest_tokens <= len(ids) <= text.max_tokens]
    return [np.array(ids) for ids in fitting[: SENTENCES + CALIBRATION_SENTENCES]]


def same_nearest_neighbour(float32: Path, int8: Path, sequences: list[Sequence]) -> float:
    """Return the share of sequences whose nearest neighbour, by cosine, is the same to two graphs."""
    expected, actual = (_nearest(_vectors(path, sequences)) for path in (float32, int8))
    return float((expected == actual).mean())


def _vectors(path: Path, sequences: list[Sequence]) -> NDArray[np.float32]:
    """Return pooled vectors of unit length [S, width]."""
    graph = EncoderGraph.open(path, "cpu")
    order = np.argsort([len(sequence) for sequence in sequences], kind="stable")
    ends = np.cumsum([len(sequences[i]) for i in order])
    cuts = [0, *np.flatnonzero(np.diff(ends // _BATCH_TOKENS)) + 1, len(order)]
    pooled = [graph.run(pack([sequences[i] for i in order[a:b]]), hidden=False).pooled for a, b in pairwise(cuts)]
    vectors = normalize_pooled(np.concatenate([each for each in pooled if each is not None]), normalized=True)
    return vectors[np.argsort(order)]


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of each vector's nearest other one."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest
