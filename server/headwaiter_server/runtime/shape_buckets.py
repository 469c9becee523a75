"""Rounds a batch's sizes up, so that a GPU's memory sees few shapes: what is allocated for one fits the next."""

from dataclasses import replace

import numpy as np

from headwaiter_server.runtime.packing import PackedBatch

# From one power of two to the next there are so many sizes: none is rounded up by more than one in so many parts.
_STEPS = 8
# CUDA's memory-efficient attention takes a bias in float16 only where a line of cells is a multiple of this.
_LINE_CELLS = 8


def round_up_to_buckets(batch: PackedBatch) -> PackedBatch:
    """Return a batch that begins with the same rows, and whose B, T and N are each of few sizes.

    Those are the multiples of 1/8 of the power of two below; N is a multiple of 8 too. Lines of cells get more padding,
    which costs no token. Sequences of zeros behind the batch's own take the rest of T and B: none of them is longer
    than the longest of the batch, so that no position occurs that a model may not have. They need a token each, for
    which T is rounded further where there are many short sequences.

    Fewer than 8 sequences get none of these, as one alone would be more than an eighth of their cells, and keep their
    T: so few find room in the memory that a full batch has left.
    """
    sequences, tokens = _sizes(batch)
    padded_length = _round(batch.padded_length, _LINE_CELLS)
    dummies, spare = sequences - batch.sequences, tokens - batch.tokens
    if not dummies:
        return replace(batch, padded_length=padded_length)
    lengths = np.full(dummies, spare // dummies, np.int32)
    lengths[: spare % dummies] += 1
    return PackedBatch(
        np.concatenate([batch.rows, np.zeros((spare, *batch.rows.shape[1:]), batch.rows.dtype)]),
        np.concatenate([batch.lengths, lengths]),
        np.concatenate([batch.starts, batch.tokens + np.cumsum(lengths, dtype=np.int64) - lengths]),
        padded_length,
    )


def _sizes(batch: PackedBatch) -> tuple[int, int]:
    """Return the fewest T, and the fewest B for it, that leave each dummy 1 to `longest_tokens` tokens."""
    if batch.sequences < _STEPS:
        return batch.sequences, batch.tokens
    tokens = _round(batch.tokens)
    while True:
        spare = tokens - batch.tokens
        fewest_dummies = -(-spare // batch.longest_tokens)
        sequences = _round(batch.sequences + fewest_dummies)
        if sequences - batch.sequences <= spare:
            return sequences, tokens
        tokens = _round(tokens + 1)


def _round(size: int, least_step: int = 1) -> int:
    """Return the next of the sizes; sizes up to 16 are all among them unless the steps are larger."""
    power = (size - 1).bit_length() - 1
    step = max((1 << max(0, power)) // _STEPS, least_step)
    return -(-size // step) * step
