"""The packed batch: sequences end to end, and the index arrays that let attention find each one.

All of it is computed on the host, so that graphs have no data-dependent shapes and a GPU never waits for the host.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False, slots=True)
class PackedBatch:
    """B sequences of lengths n_1..n_B packed into T = Σ n_i rows; N cells hold each where they are padded.

    Attributes:
        rows: int64 [T] token ids, or float32 [T, d_in] features.
        lengths: int32 [B] tokens of each sequence.
        starts: int64 [B] first row of each sequence.
        padded_length: N, the longest length, or more where sizes are rounded up.
    """

    rows: NDArray[np.generic]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int64]
    padded_length: int

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.rows)

    @property
    def longest_tokens(self) -> int:
        """The longest length."""
        return int(self.lengths.max())

    def feeds(self, names: Collection[str]) -> dict[str, NDArray[np.generic]]:
        """Return the arrays for the inputs that a graph declares.

        A graph that declares `attention_mask` is a padded one: its ids or features come as [B, N] cells.

        Raises:
            KeyError: a name that no packed batch has.
        """
        makers = _PADDED if "attention_mask" in names else _PACKED
        return {name: makers[name](self) for name in names}

    def drop_padding(self, cells: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the packed rows [T, ...] of padded cells [B, N, ...]."""
        return cells.reshape(-1, *cells.shape[2:])[scatter(self)]

    def split(self, rows: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Return one view [n_i, ...] a sequence of packed rows [T, ...]."""
        return np.split(rows, self.starts[1:])


def pack(sequences: Sequence[NDArray[np.generic]]) -> PackedBatch:
    """Lay sequences end to end.

    Args:
        sequences: token ids [n_i] of an integer type, or features [n_i, d_in]; none of them empty.
    """
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int32, len(sequences))
    rows = np.concatenate(sequences)
    dtype = np.int64 if rows.ndim == 1 else np.float32
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    return PackedBatch(rows.astype(dtype, copy=False), lengths, starts, int(lengths.max()))


def positions(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the position of each row inside its own sequence, [T]."""
    return np.arange(batch.tokens, dtype=np.int64) - np.repeat(batch.starts, batch.lengths)


def gather(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the row to read for each padded cell, [B, N].

    A padding cell repeats its own sequence's last row: nothing of a neighbour ever enters a sequence's view, where
    even a weight of zero times an infinity would be NaN.
    """
    cells = batch.starts[:, None] + np.arange(batch.padded_length, dtype=np.int64)
    last_rows = batch.starts + batch.lengths - 1
    np.minimum(cells, last_rows[:, None], out=cells)
    return cells


def scatter(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the padded cell of each row, [T]."""
    first_cells = np.arange(batch.sequences, dtype=np.int64) * batch.padded_length
    return np.repeat(first_cells, batch.lengths) + positions(batch)


def attention_mask(batch: PackedBatch) -> NDArray[np.int64]:
    """Return 1 for the cells that hold a token and 0 for padding, [B, N]."""
    return (~_padding(batch)).astype(np.int64)


def cu_seqlens(batch: PackedBatch) -> NDArray[np.int32]:
    """Return the cumulative lengths, [B+1]."""
    return np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int32)


def key_spans(batch: PackedBatch) -> NDArray[np.int32]:
    """Return the key padding mask of MultiHeadAttention that CUDA's memory-efficient kernel takes, [3B+2].

    The lengths; the first cell of each sequence's queries and where the last one's end; the same of its keys. The
    operator's schema knows its size alone: the meaning is that of MASK_1D_KEY_SEQ_LEN_START in ONNX Runtime's
    attention_common.h, and that the starts count padding cells is how its kernel uses them.
    """
    first_cells = np.arange(batch.sequences + 1) * batch.padded_length
    return np.concatenate([batch.lengths, first_cells, first_cells]).astype(np.int32)


def token_offset(batch: PackedBatch) -> NDArray[np.int32]:
    """Return the cells that hold a token, then the padding cells, [B, N]: PackedMultiHeadAttention's order."""
    cells = np.concatenate([scatter(batch), np.flatnonzero(_padding(batch))], dtype=np.int32, casting="same_kind")
    return cells.reshape(batch.sequences, -1)


def _padding(batch: PackedBatch) -> NDArray[np.bool_]:
    """Return whether a cell holds no token, [B, N]."""
    return np.arange(batch.padded_length, dtype=np.int32) >= batch.lengths[:, None]


_Maker = Callable[[PackedBatch], NDArray[np.generic]]

_PACKED: dict[str, _Maker] = {
    "input_ids": lambda batch: batch.rows,
    "features": lambda batch: batch.rows,
    "positions": positions,
    "lengths": lambda batch: batch.lengths,
    "gather": gather,
    "scatter": scatter,
    "cu_seqlens": cu_seqlens,
    "token_offset": token_offset,
    "key_spans": key_spans,
}

_PADDED: dict[str, _Maker] = {
    "input_ids": lambda batch: batch.rows[gather(batch)],
    "features": lambda batch: batch.rows[gather(batch)],
    "attention_mask": attention_mask,
}
