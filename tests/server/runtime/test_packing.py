"""The arrays of a packed batch equal those of simple loops that follow their definitions."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwaiter_server.runtime.packing import BLOCK_CELLS, PackedBatch, Parts, pack

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def _batch(lengths: list[int], **limits: int) -> PackedBatch:
    return pack([np.arange(100 * index, 100 * index + length) for index, length in enumerate(lengths)], **limits)


def _cells(lengths: list[int]) -> list[tuple[int, int, int]]:
    """Return for each grid cell the first row and the length of its sequence, and its position in the sequence."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [
        (start, length, position)
        for start, length in zip(starts, lengths, strict=True)
        for position in range(max(lengths))
    ]


def _token_offset(lengths: list[int]) -> list[int]:
    real: list[int] = []
    padding: list[int] = []
    for cell, (_, length, position) in enumerate(_cells(lengths)):
        (real if position < length else padding).append(cell)
    return real + padding


ORACLES: dict[str, Callable[[list[int]], list[int]]] = {
    "positions": lambda lengths: [position for length in lengths for position in range(length)],
    "lengths": lambda lengths: lengths,
    # A padding cell repeats its own sequence's last row.
    "gather": lambda lengths: [start + min(position, length - 1) for start, length, position in _cells(lengths)],
    "scatter": lambda lengths: _token_offset(lengths)[: sum(lengths)],
    # One block holds all queries of so few cells.
    "query_blocks": lambda lengths: [start + min(position, length - 1) for start, length, position in _cells(lengths)],
    "block_scatter": lambda lengths: _token_offset(lengths)[: sum(lengths)],
    "cu_seqlens": lambda lengths: [sum(lengths[:count]) for count in range(len(lengths) + 1)],
    "token_offset": _token_offset,
    "input_ids": lambda lengths: [100 * index + position for index, n in enumerate(lengths) for position in range(n)],
}
TYPES = dict.fromkeys(("lengths", "cu_seqlens", "token_offset"), np.int32)


@given(lengths=lengths_lists)
def test_each_index_array_equals_its_definition(lengths: list[int]) -> None:
    batch = _batch(lengths)
    grid = len(lengths), max(lengths)
    shapes: dict[str, tuple[int, ...]] = {"gather": grid, "token_offset": grid, "lengths": (len(lengths),)}
    shapes |= {"query_blocks": (1, *grid), "cu_seqlens": (len(lengths) + 1,)}

    fed = batch.feeds(list(ORACLES))

    assert list(fed) == list(ORACLES)
    for name, oracle in ORACLES.items():
        assert fed[name].ravel().tolist() == oracle(lengths), name
        assert fed[name].shape == shapes.get(name, (sum(lengths),)), name
        assert fed[name].dtype == TYPES.get(name, np.int64), name


@given(lengths=lengths_lists, block_cells=st.integers(1, 9 * 9 * 8))
def test_query_blocks_hold_every_row_once_within_their_limit_and_no_row_of_another_sequence(
    lengths: list[int], block_cells: int
) -> None:
    batch = _batch(lengths, block_cells=block_cells)
    fed = batch.feeds(["query_blocks", "block_scatter"])
    blocks, sequences, block_length = fed["query_blocks"].shape
    assert (blocks, sequences, block_length) == (batch.query_blocks, len(lengths), batch.block_length)
    assert block_length == 1 or sequences * block_length * max(lengths) <= block_cells
    assert (blocks - 1) * block_length < max(lengths) <= blocks * block_length
    assert fed["query_blocks"].ravel()[fed["block_scatter"]].tolist() == list(range(sum(lengths)))
    for index, length in enumerate(lengths):
        own = fed["query_blocks"][:, index] - sum(lengths[:index])
        assert own.min() >= 0
        assert own.max() < length


@given(lengths=lengths_lists)
def test_a_graph_with_an_attention_mask_gets_padded_cells(lengths: list[int]) -> None:
    batch = _batch(lengths)
    fed = batch.feeds(["input_ids", "attention_mask"])
    for sequence, length in enumerate(lengths):
        for position in range(max(lengths)):
            assert fed["attention_mask"][sequence, position] == (position < length)
            assert fed["input_ids"][sequence, position] == 100 * sequence + min(position, length - 1)
    assert fed["attention_mask"].dtype == fed["input_ids"].dtype == np.int64


def test_the_token_offset_equals_the_example_in_the_operators_documentation() -> None:
    fed = _batch([1, 2, 4]).feeds(["token_offset", "cu_seqlens"])
    assert fed["token_offset"].ravel().tolist() == [0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7]
    assert fed["cu_seqlens"].tolist() == [0, 1, 1 + 2, 1 + 2 + 4]


@given(lengths=lengths_lists)
def test_splitting_undoes_packing_and_dropping_padding_undoes_gathering(lengths: list[int]) -> None:
    sequences: list[NDArray[np.generic]] = [
        np.full((length, 3), index, np.float32) + np.arange(length, dtype=np.float32)[:, None] / 16
        for index, length in enumerate(lengths)
    ]
    batch = pack(sequences)
    padded = batch.feeds(["features", "attention_mask"])["features"]

    assert padded.shape == (len(lengths), max(lengths), 3)
    np.testing.assert_array_equal(batch.drop_padding(padded), batch.rows)
    for part, sequence in zip(batch.split(batch.rows), sequences, strict=True):
        np.testing.assert_array_equal(part, sequence)


@pytest.mark.parametrize(
    ("sequences", "dtype"),
    [
        ([np.array([1], np.int32), np.array([2, 3], np.int64)], np.int64),
        ([np.array([1], np.int32)], np.int64),
        ([np.ones((1, 2), np.float16), np.ones((2, 2), np.float32)], np.float32),
        ([np.ones((1, 2), np.float16)], np.float32),
    ],
)
def test_ids_are_packed_as_int64_and_features_as_float32(sequences: list[NDArray[np.generic]], dtype: type) -> None:
    assert pack(sequences).rows.dtype == dtype


@pytest.mark.parametrize("names", [["unknown"], ["attention_mask", "positions"]])
def test_an_unknown_graph_input_is_a_key_error(names: list[str]) -> None:
    with pytest.raises(KeyError, match=names[-1]):
        _batch([1, 2]).feeds(names)


@given(pairs=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=6), ids=st.booleans())
def test_the_parts_of_a_batch_are_batches_of_sources_and_of_targets(pairs: list[tuple[int, int]], ids: bool) -> None:
    sources = [np.arange(100 * index, 100 * index + n) for index, (n, _) in enumerate(pairs)]
    targets = [np.arange(100 * index + 50, 100 * index + 50 + m) for index, (_, m) in enumerate(pairs)]
    dtype: type = np.int64 if ids else np.float32
    sequences: list[NDArray[np.generic]] = [
        np.stack([np.concatenate(parts), np.repeat([0, 1], list(map(len, parts)))], axis=1).astype(dtype)
        for parts in zip(sources, targets, strict=True)
    ]
    shape = (-1,) if ids else (-1, 1)
    expected = [pack([rows.astype(dtype).reshape(shape) for rows in part]) for part in (sources, targets)]
    name, indices = "input_ids" if ids else "features", ("positions", "gather", "cu_seqlens", "query_blocks")
    names = [prefix + each for prefix in ("", "target_") for each in (name, *indices)]

    batch = pack(sequences)
    fed = batch.feeds([*names, "places"])

    for prefix, part in zip(("", "target_"), expected, strict=True):
        for each, array in part.feeds([name, *indices]).items():
            np.testing.assert_array_equal(fed[prefix + each], array)
    rows = np.concatenate([fed[name], fed[f"target_{name}"]])
    np.testing.assert_array_equal(rows[fed["places"]].ravel(), batch.rows[:, 0])
    # Padded, the rows of all parts are in cells of their own.
    cells = np.concatenate([part.rows.ravel()[part.feeds(["gather"])["gather"]] for part in expected], axis=1)
    np.testing.assert_array_equal(Parts.of(batch).drop_padding(cells), batch.rows[:, 0])


@pytest.mark.parametrize(("source", "target"), [(2000, 2000), (4000, 100), (100, 4000), (9, 3), (3000, 1)])
def test_the_blocks_of_a_target_bound_its_scores_for_the_source_too(source: int, target: int) -> None:
    rows = np.stack([np.arange(source + target), np.arange(source + target) >= source], axis=1).astype(np.int64)
    (blocks, sequences, block) = (
        pack([rows, rows]).feeds(["target_query_blocks", "lengths"])["target_query_blocks"].shape
    )
    assert sequences == 2
    assert blocks * block >= target
    # A block of one query has any number of keys.
    assert block == 1 or sequences * block * max(source, target) <= BLOCK_CELLS
