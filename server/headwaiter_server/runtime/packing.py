"""Pack sequences into one batch without padding, and compute the index arrays that locate each sequence.

The host computes the index arrays in numpy. Graphs therefore have no data-dependent shapes, and a GPU never waits for
the host.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.generic)

# Attention cells of a query block: 4 MiB of scores in each head. For a sequence of 8,192 tokens, blocks of half as many
# cells are about 10 % slower, and blocks of twice as many are 4 % faster.
BLOCK_CELLS = 1 << 20
# The names of the inputs of targets begin with this prefix.
TARGET = "target_"


@dataclass(eq=False, slots=True)
class PackedBatch:
    """B sequences of lengths n_1..n_B, concatenated to T = Σ n_i rows. The padded grid has B·N cells.

    Attributes:
        rows: token ids, int64 [T], or token ids and token types, int64 [T, 2], or features, float32 [T, d_in]. For a
            model with targets, the last column says whether a row belongs to a target, 1 or 0.
        lengths: tokens of each sequence, int32 [B].
        starts: first row of each sequence, int64 [B].
        padded_length: N, the length of the longest sequence, or that length rounded up to a shape bucket.
        block_cells: maximum attention cells of a query block; only a block of one query per sequence may have more.
        inputs: the inputs of a graph for this batch, if they were computed before the run.
    """

    rows: NDArray[np.generic]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int64]
    padded_length: int
    block_cells: int = BLOCK_CELLS
    inputs: Mapping[str, NDArray[np.generic]] | None = None

    @property
    def sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """T, the number of rows."""
        return len(self.rows)

    @property
    def longest_tokens(self) -> int:
        """The length of the longest sequence."""
        return int(self.lengths.max())

    @property
    def query_blocks(self) -> int:
        """The number of blocks into which attention cuts the N queries of each sequence, to limit a block's cells."""
        block_length = max(1, self.block_cells // (self.sequences * self.padded_length))
        return -(-self.padded_length // block_length)

    @property
    def block_length(self) -> int:
        """Queries of each sequence in one block; all blocks have the same length."""
        return -(-self.padded_length // self.query_blocks)

    def feeds(self, names: Collection[str]) -> dict[str, NDArray[np.generic]]:
        """Return the arrays for the inputs of a graph.

        A graph with the input `attention_mask` is padded and gets token ids [B, N] or features [B, N, d_in]. A graph
        with inputs of targets gets those of `Parts`.

        Raises:
            KeyError: a packed batch has no array for one of the names.
        """
        if any(name.startswith(TARGET) for name in names):
            return Parts.of(self).feeds(names)
        return self.arrays(names, padded="attention_mask" in names)

    def arrays(self, names: Collection[str], *, padded: bool) -> dict[str, NDArray[np.generic]]:
        """Return the arrays for the inputs of a graph, which is padded or not; `feeds` describes them."""
        inputs = _PADDED_INPUTS if padded else _PACKED_INPUTS
        return {name: inputs[name](self) for name in names}

    def drop_padding(self, cells: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the rows [T, ...] of the grid cells [B, N, ...]."""
        return cells.reshape(-1, *cells.shape[2:])[scatter(self)]

    def split(self, rows: NDArray[_Value]) -> list[NDArray[_Value]]:
        """Split the rows [T, ...] into one view [n_i, ...] for each sequence."""
        return np.split(rows, self.starts[1:])


@dataclass(frozen=True, eq=False)
class Parts:
    """The sources and the targets of a batch's sequences, for a graph of an encoder and a decoder.

    Attributes:
        source: the sources, without the column that says which part a row belongs to.
        target: the targets, in the same order.
        is_target: whether a row of the batch belongs to a target, bool [T].
    """

    source: PackedBatch
    target: PackedBatch
    is_target: NDArray[np.bool_]

    @classmethod
    def of(cls, batch: PackedBatch) -> "Parts":
        """Take a batch apart; each sequence has rows of its source, then rows of its target."""
        is_target = batch.rows[:, -1] != 0
        rows = batch.rows[:, 0] if batch.rows.dtype.kind == "i" else batch.rows[:, :-1]
        target_lengths = np.add.reduceat(is_target, batch.starts, dtype=np.int32)
        source, target = (
            PackedBatch(
                rows[chosen],
                lengths,
                np.cumsum(lengths, dtype=np.int64) - lengths,
                int(lengths.max()),
                batch.block_cells,
            )
            for chosen, lengths in ((~is_target, batch.lengths - target_lengths), (is_target, target_lengths))
        )
        # The keys of a block of the target's queries are also those of the source.
        longest = max(source.padded_length, target.padded_length)
        cells = batch.block_cells * target.padded_length // longest
        return cls(source, replace(target, block_cells=cells), is_target)

    def with_lengths(self, change: Callable[[int], int]) -> "Parts":
        """Return the same parts, with N changed by a function."""
        source, target = (
            replace(each, padded_length=change(each.padded_length)) for each in (self.source, self.target)
        )
        return Parts(source, target, self.is_target)

    def feeds(self, names: Collection[str]) -> dict[str, NDArray[np.generic]]:
        """Return the arrays for the inputs of a graph, as `PackedBatch.feeds`.

        `places` [T] says where a row of the batch is in the concatenation of all sources and all targets.
        """
        targets = [name.removeprefix(TARGET) for name in names if name.startswith(TARGET)]
        sources = [name for name in names if not name.startswith(TARGET) and name != "places"]
        padded = "attention_mask" in (*sources, *targets)
        feeds = self.source.arrays(sources, padded=padded)
        feeds.update({TARGET + name: array for name, array in self.target.arrays(targets, padded=padded).items()})
        if "places" in names:
            in_target, in_source = np.cumsum(self.is_target), np.cumsum(~self.is_target)
            feeds["places"] = np.where(self.is_target, self.source.tokens + in_target, in_source) - 1
        return feeds

    def drop_padding(self, cells: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the rows [T, ...] of the grid cells [B, N of the sources + N of the targets, ...]."""
        source, target = np.split(cells, [self.source.padded_length], axis=1)
        rows = np.empty((len(self.is_target), *cells.shape[2:]), cells.dtype)
        rows[~self.is_target], rows[self.is_target] = self.source.drop_padding(source), self.target.drop_padding(target)
        return rows


def pack(sequences: Sequence[NDArray[np.generic]], *, block_cells: int = BLOCK_CELLS) -> PackedBatch:
    """Concatenate sequences of n_i ≥ 1 tokens to a packed batch.

    A sequence is integer token ids [n_i], or ids and token types [n_i, 2], or features [n_i, d_in], see `PackedBatch`.
    """
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int32, len(sequences))
    rows = np.concatenate(sequences)
    dtype = np.float32 if rows.dtype.kind == "f" else np.int64
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    return PackedBatch(rows.astype(dtype, copy=False), lengths, starts, int(lengths.max()), block_cells)


def input_ids(batch: PackedBatch) -> NDArray[np.generic]:
    """Return the token id of each row, [T]."""
    return batch.rows if batch.rows.ndim == 1 else np.ascontiguousarray(batch.rows[:, 0])


def token_type_ids(batch: PackedBatch) -> NDArray[np.generic]:
    """Return the token type of each row, [T]; 0 for rows without a type."""
    return np.zeros_like(batch.rows) if batch.rows.ndim == 1 else np.ascontiguousarray(batch.rows[:, 1])


def positions(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the position of each row in its own sequence, [T]."""
    return np.arange(batch.tokens, dtype=np.int64) - np.repeat(batch.starts, batch.lengths)


def gather(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the row that each grid cell takes its values from, [B, N].

    A padding cell repeats the last row of its own sequence. In a row of another sequence, an infinite value would give
    NaN even with a weight of zero (0 × infinity).
    """
    cells = batch.starts[:, None] + np.arange(batch.padded_length, dtype=np.int64)
    last_rows = batch.starts + batch.lengths - 1
    np.minimum(cells, last_rows[:, None], out=cells)
    return cells


def scatter(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the index of each row's grid cell in the flattened [B, N] grid, [T]."""
    first_cells = np.arange(batch.sequences, dtype=np.int64) * batch.padded_length
    return np.repeat(first_cells, batch.lengths) + positions(batch)


def query_blocks(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the row that each cell of a query block takes its query from, [blocks, B, block length].

    Cells beyond the padded grid repeat its last column.
    """
    if batch.query_blocks == 1:
        return gather(batch)[None]
    cells = np.minimum(np.arange(batch.query_blocks * batch.block_length), batch.padded_length - 1)
    blocks = gather(batch)[:, cells].reshape(batch.sequences, batch.query_blocks, batch.block_length)
    return np.ascontiguousarray(blocks.swapaxes(0, 1))


def block_scatter(batch: PackedBatch) -> NDArray[np.int64]:
    """Return the index of each row's cell in the flattened query blocks, [T]; with one block, equal to `scatter`."""
    if batch.query_blocks == 1:
        return scatter(batch)
    block, cell = np.divmod(positions(batch), batch.block_length)
    sequence = np.repeat(np.arange(batch.sequences, dtype=np.int64), batch.lengths)
    return (block * batch.sequences + sequence) * batch.block_length + cell


def attention_mask(batch: PackedBatch) -> NDArray[np.int64]:
    """Return 1 for each grid cell that holds a token and 0 for padding, [B, N]."""
    return (~_padding(batch)).astype(np.int64)


def cu_seqlens(batch: PackedBatch) -> NDArray[np.int32]:
    """Return the cumulative lengths, from 0 to T, [B+1]."""
    return np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int32)


def token_offset(batch: PackedBatch) -> NDArray[np.int32]:
    """Return the indices of the cells that hold a token, then the indices of padding cells, [B, N].

    PackedMultiHeadAttention expects this order.
    """
    cells = np.concatenate([scatter(batch), np.flatnonzero(_padding(batch))], dtype=np.int32, casting="same_kind")
    return cells.reshape(batch.sequences, -1)


def _padding(batch: PackedBatch) -> NDArray[np.bool_]:
    """Return True for each grid cell that holds no token, [B, N]."""
    return np.arange(batch.padded_length, dtype=np.int32) >= batch.lengths[:, None]


_MakeInput = Callable[[PackedBatch], NDArray[np.generic]]

_PACKED_INPUTS: dict[str, _MakeInput] = {
    "input_ids": input_ids,
    "token_type_ids": token_type_ids,
    "features": lambda batch: batch.rows,
    "positions": positions,
    "lengths": lambda batch: batch.lengths,
    "gather": gather,
    "scatter": scatter,
    "query_blocks": query_blocks,
    "block_scatter": block_scatter,
    "cu_seqlens": cu_seqlens,
    "token_offset": token_offset,
}

_PADDED_INPUTS: dict[str, _MakeInput] = {
    "input_ids": lambda batch: input_ids(batch)[gather(batch)],
    "token_type_ids": lambda batch: token_type_ids(batch)[gather(batch)],
    "features": lambda batch: batch.rows[gather(batch)],
    "attention_mask": attention_mask,
}
