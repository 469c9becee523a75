"""Sparse vectors: the numbers of a vector that are not 0, each with its index."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb

# An entry of a sparse vector.
ENTRY = np.dtype([("index", "<u4"), ("value", "<f4")])
_FLOATS = {pb.DATA_TYPE_FLOAT32: "<f4", pb.DATA_TYPE_FLOAT16: "<f2"}


def sparse_vectors(vectors: NDArray[np.float32]) -> list[NDArray[Any]]:
    """Return the entries [n] of each vector of [B, width], in the order of their indices."""
    rows, columns = np.nonzero(vectors)
    entries = np.empty(len(rows), ENTRY)
    entries["index"], entries["value"] = columns, vectors[rows, columns]
    ends = np.cumsum(np.bincount(rows, minlength=len(vectors)))
    return np.split(entries, ends[:-1])


def weighted_tokens(
    ids: NDArray[np.generic], weights: NDArray[np.float32], unweighted_ids: Collection[int]
) -> NDArray[Any]:
    """Return the entries of the sparse vector in which the number of a token id is the largest weight of its tokens.

    As in BGE-M3 (https://arxiv.org/abs/2402.03216, section 3.2).

    Args:
        ids: the token id of each token, [n].
        weights: the weight of each token, at least 0, [n].
        unweighted_ids: ids of tokens that the vector leaves out.
    """
    weighed = (weights > 0) & ~np.isin(ids, list(unweighted_ids))
    index, places = np.unique(ids[weighed], return_inverse=True)
    entries = np.zeros(len(index), ENTRY)
    entries["index"] = index
    np.maximum.at(entries["value"], places, weights[weighed])
    return entries


def dense_vectors(vectors: Sequence[NDArray[Any]], width: int) -> NDArray[np.float32]:
    """Return sparse vectors with all their numbers, float32 [B, width]."""
    dense = np.zeros((len(vectors), width), np.float32)
    for row, entries in zip(dense, vectors, strict=True):
        row[entries["index"]] = entries["value"]
    return dense


def sparse_message(vectors: Sequence[NDArray[Any]], lengths: Sequence[int], dtype: pb.DataType) -> pb.SparseVectors:
    """Return the message of sparse vectors; failed sequences, whose length is 0, have vectors without entries.

    Args:
        vectors: the entries of each sequence that did not fail.
        lengths: the number of tokens of each sequence.
        dtype: FLOAT32 or FLOAT16.
    """
    left = iter(vectors)
    counts = [len(next(left)) if length else 0 for length in lengths]
    entries = np.concatenate([np.empty(0, ENTRY), *vectors])
    values = entries["value"].astype(_FLOATS[dtype])
    return pb.SparseVectors(dtype=dtype, counts=counts, indices=entries["index"].tobytes(), values=values.tobytes())


def entries_of(message: pb.SparseVectors) -> list[NDArray[Any]]:
    """Return the entries [n] of each sparse vector of a reply, with values in its data type.

    Raises:
        KeyError: the data type is unknown.
        ValueError: the counts do not fit the indices and the values.
    """
    indices = np.frombuffer(message.indices, "<u4")
    values = np.frombuffer(message.values, _FLOATS[message.dtype])
    if not len(indices) == len(values) == sum(message.counts):
        raise ValueError(f"sparse has {sum(message.counts)} entries, {len(indices)} indices and {len(values)} values")
    entries = np.empty(len(indices), [("index", "<u4"), ("value", values.dtype)])
    entries["index"], entries["value"] = indices, values
    # Copies, because a view would keep the vectors of all sequences in memory.
    return [part.copy() for part in np.split(entries, np.cumsum(message.counts)[:-1])]
