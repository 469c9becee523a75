"""Round the sizes of a batch up to shape buckets.

A GPU then sees few different shapes, and memory allocated for one batch fits the next batch.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.attention_routes import PADDED_LENGTH_STEP
from headwaiter_server.runtime.packing import TARGET, PackedBatch, Parts

# Number of shape buckets between one power of two and the next. Rounding up to a bucket adds less than 1/8 to a size.
_BUCKETS_PER_OCTAVE = 8
# Maximum sequences of a batch on CUDA. Attention kernels start one thread block for each sequence, along a dimension of
# the grid that CUDA limits to this number.
MAX_BATCH_SEQUENCES = 65_535

# ONNX Runtime's CUDA kernels number the elements of an array with 32 bits. For larger arrays, some kernels fail, and
# some write wrong numbers.
_MAX_ELEMENTS = 2**31 - 1

# CUDA graphs are captured for sizes that are powers of two within these bounds: 118 shapes in all.
GRAPH_TOKENS = tuple(32 << step for step in range(7))
_GRAPH_LENGTHS = GRAPH_TOKENS[:5]
_MAX_GRAPH_SEQUENCES = 64


class GraphShape(NamedTuple):
    """The sizes of a CUDA graph: sequences B, tokens T, and padded length N."""

    sequences: int
    tokens: int
    padded_length: int


def most_padded_tokens(heads: int) -> int:
    """Return the largest bucket N for which CUDA kernels can compute an array [heads, N, N]."""
    return next(n for n in range(math.isqrt(_MAX_ELEMENTS // heads), 0, -1) if _round_up(n, PADDED_LENGTH_STEP) == n)


def round_up_to_buckets(batch: PackedBatch) -> PackedBatch:
    """Return a batch that begins with the same rows and whose B, T and N are rounded up to shape buckets.

    A bucket is a multiple of 1/8 of the power of two below the size; buckets of N are also multiples of 16. Rounding N
    only adds padding cells. Rounding B and T appends dummy sequences of zeros. Each dummy has 1 to `longest_tokens`
    tokens, because the model knows no later positions. If the rounded T leaves fewer tokens than B needs dummies, each
    of them has one token, and B is no bucket: another bucket of T would add up to 1/8 to the work of a batch.

    A batch of fewer than 8 sequences keeps its B and T: one dummy sequence would be more than 1/8 of its cells, and a
    batch this small fits in memory that larger batches have allocated. A batch whose B would exceed MAX_BATCH_SEQUENCES
    also keeps its B and T.
    """
    return append_dummies(batch, *_bucket_sizes(batch), round_up_length(batch.padded_length))


def append_dummies(batch: PackedBatch, sequences: int, tokens: int, padded_length: int) -> PackedBatch:
    """Return the batch with dummy sequences of zeros at its end, up to these B and T, and with this N."""
    dummies, dummy_tokens = sequences - batch.sequences, tokens - batch.tokens
    if not dummies:
        return replace(batch, padded_length=padded_length)
    lengths = np.full(dummies, dummy_tokens // dummies, np.int32)
    lengths[: dummy_tokens % dummies] += 1
    return PackedBatch(
        np.concatenate([batch.rows, np.zeros((dummy_tokens, *batch.rows.shape[1:]), batch.rows.dtype)]),
        np.concatenate([batch.lengths, lengths]),
        np.concatenate([batch.starts, batch.tokens + np.cumsum(lengths, dtype=np.int64) - lengths]),
        padded_length,
        batch.block_cells,
    )


def graph_shape(batch: PackedBatch) -> GraphShape | None:
    """Return the smallest shape of a CUDA graph that holds a batch and its dummies; None if all are too small."""
    longest = batch.longest_tokens
    padded_length = _power_of_two(max(longest, _GRAPH_LENGTHS[0]))
    for tokens in GRAPH_TOKENS:
        dummy_tokens = tokens - batch.tokens
        sequences = _power_of_two(batch.sequences - (-dummy_tokens // longest))
        if 0 <= sequences - batch.sequences <= dummy_tokens:
            fits = sequences <= _MAX_GRAPH_SEQUENCES and padded_length <= _GRAPH_LENGTHS[-1]
            return GraphShape(sequences, tokens, padded_length) if fits else None
    return None


def graph_batches(tokens: int, longest_tokens: int) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of one batch for each shape of a CUDA graph with T tokens; no sequence is longer than given."""
    for padded_length in _GRAPH_LENGTHS:
        for sequences in (1 << step for step in range(_MAX_GRAPH_SEQUENCES.bit_length())):
            others = sequences - 1
            longest = min(padded_length, tokens - others, longest_tokens)
            is_bucket = longest > 0 and _power_of_two(max(longest, _GRAPH_LENGTHS[0])) == padded_length
            if is_bucket and tokens - longest <= others * longest:
                share, rest = divmod(tokens - longest, max(1, others))
                yield (longest, *(share + (index < rest) for index in range(others)))


def _power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def round_up_length(padded_length: int) -> int:
    """Return the smallest bucket of N that is at least N."""
    return _round_up(padded_length, PADDED_LENGTH_STEP)


def feeds_in_buckets(batch: PackedBatch, names: Collection[str]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays for the inputs of a graph, with sizes rounded up; of sources and targets only N is rounded."""
    if any(name.startswith(TARGET) for name in names):
        return Parts.of(batch).with_lengths(round_up_length).feeds(names)
    return round_up_to_buckets(batch).feeds(names)


def feeds_in_few_shapes(batch: PackedBatch, names: Collection[str]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays for the inputs of a packed graph, with sizes rounded up; their first axis is B or T.

    The last row and the last sequence are repeated, so that appended ones are computed from numbers that the model
    knows. No sequence of the batch gathers an appended row, and its results are the first ones of the graph.
    """
    if any(name.startswith(TARGET) for name in names):
        parts = Parts.of(batch).with_lengths(round_up_length)
        feeds, sources = parts.feeds(names), parts.source.tokens
        if "places" in feeds:
            # The rows of targets follow those of sources.
            places = feeds["places"].astype(np.int64, copy=False)
            feeds["places"] = places + np.where(places < sources, 0, _round_up(sources) - sources)
    else:
        feeds = replace(batch, padded_length=round_up_length(batch.padded_length)).feeds(names)
    return {name: _repeat_last(array, _round_up(len(array))) for name, array in feeds.items()}


def _repeat_last(array: NDArray[np.generic], size: int) -> NDArray[np.generic]:
    """Return the array with its last entry repeated up to this size."""
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def _bucket_sizes(batch: PackedBatch) -> tuple[int, int]:
    """Return the bucket of T, and B with as many dummy sequences as its bucket needs and the tokens allow."""
    if batch.sequences < _BUCKETS_PER_OCTAVE:
        return batch.sequences, batch.tokens
    tokens = _round_up(batch.tokens)
    dummy_tokens = tokens - batch.tokens
    fewest_dummies = -(-dummy_tokens // batch.longest_tokens)
    sequences = min(_round_up(batch.sequences + fewest_dummies), batch.sequences + dummy_tokens)
    if sequences > MAX_BATCH_SEQUENCES:
        return batch.sequences, batch.tokens
    return sequences, tokens


def _round_up(size: int, smallest_step: int = 1) -> int:
    """Return the smallest bucket that is at least `size`; buckets are multiples of `smallest_step`."""
    power = (size - 1).bit_length() - 1
    step = max((1 << max(0, power)) // _BUCKETS_PER_OCTAVE, smallest_step)
    return -(-size // step) * step
