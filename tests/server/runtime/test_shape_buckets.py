"""A batch rounded up to shape buckets begins with the original batch and has one of few shapes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import (
    GRAPH_TOKENS,
    append_dummies,
    feeds_in_few_shapes,
    graph_batches,
    graph_shape,
    round_up_to_buckets,
)

# Many short sequences mixed with long ones.
lengths_lists = st.lists(st.integers(1, 3) | st.integers(1, 600), min_size=1, max_size=80)


def _batch(lengths: list[int]) -> PackedBatch:
    return pack([np.full(length, 1 + index, np.int64) for index, length in enumerate(lengths)])


def _is_bucket(size: int) -> bool:
    """Return whether a size is a multiple of 1/8 of the largest power of two below it."""
    power = 1
    while 2 * power < size:
        power *= 2
    return size * 8 % power == 0


@given(lengths=lengths_lists)
@example([1])
@example([1] * 1000)
@example([1] * 225 + [2])
@example([512] * 32)
def test_every_size_is_a_bucket_if_tokens_allow_and_the_original_sequences_come_first(lengths: list[int]) -> None:
    batch = _batch(lengths)
    rounded = round_up_to_buckets(batch)

    assert _is_bucket(rounded.sequences) or (rounded.lengths[len(lengths) :] == 1).all()
    assert _is_bucket(rounded.padded_length)
    assert _is_bucket(rounded.tokens) or len(lengths) < 8
    assert rounded.padded_length % 16 == 0
    assert rounded.padded_length < max(batch.longest_tokens + 16, 9 * batch.longest_tokens / 8)
    for original, padded in (
        (batch.rows, rounded.rows),
        (batch.lengths, rounded.lengths),
        (batch.starts, rounded.starts),
    ):
        np.testing.assert_array_equal(padded[: len(original)], original)
        assert padded.dtype == original.dtype


@given(lengths=lengths_lists)
@example([1] * 225 + [2])
@example([9, *[8] * 30])
@example([1] * 1000)
def test_dummy_sequences_are_few_zeros_and_no_longer_than_the_longest_sequence(lengths: list[int]) -> None:
    batch = _batch(lengths)
    rounded = round_up_to_buckets(batch)
    dummies = rounded.lengths[batch.sequences :]
    assert ((dummies >= 1) & (dummies <= batch.longest_tokens)).all()
    assert not rounded.rows[batch.tokens :].any()
    assert 8 * (rounded.tokens - batch.tokens) < batch.tokens
    assert rounded.tokens == rounded.lengths.sum()
    np.testing.assert_array_equal(rounded.starts, np.cumsum(rounded.lengths) - rounded.lengths)


@pytest.mark.parametrize("lengths", [[1] * 61_441, [1] * 61_439 + [2], [1] * 57_345 + [2] * 3_000, [1] * 65_535])
def test_no_rounded_batch_has_more_sequences_than_a_gpu_takes(lengths: list[int]) -> None:
    rounded = round_up_to_buckets(_batch(lengths))
    assert len(lengths) <= rounded.sequences <= 65_535
    assert rounded.lengths.max() <= max(lengths)


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=7))
def test_with_fewer_than_eight_sequences_only_the_padded_length_is_rounded(lengths: list[int]) -> None:
    rounded = round_up_to_buckets(_batch(lengths))
    assert rounded.lengths.tolist() == lengths
    assert rounded.tokens == sum(lengths)


def test_up_to_65536_tokens_there_are_fewer_than_120_buckets() -> None:
    # From 1,024 tokens on, each bucket covers at least 128 sizes, so every 64th size finds all buckets.
    token_counts = (*range(8, 1024), *range(1024, 65_537, 64))
    batches = (_batch([tokens - 7 * (tokens // 8)] + [tokens // 8] * 7) for tokens in token_counts)
    assert len({round_up_to_buckets(batch).tokens for batch in batches}) < 120


@given(lengths=lengths_lists)
def test_padded_cells_of_an_original_sequence_hold_only_its_own_rows(lengths: list[int]) -> None:
    batch = _batch(lengths)
    fed = round_up_to_buckets(batch).feeds(["input_ids", "gather", "scatter", "lengths"])
    own = fed["gather"][: batch.sequences]
    for index, row in enumerate(fed["input_ids"][own]):
        assert (row == 1 + index).all()
    cells = fed["gather"].ravel()[fed["scatter"]]
    np.testing.assert_array_equal(cells, np.arange(len(fed["input_ids"])))


@given(lengths=st.lists(st.integers(1, 20) | st.integers(1, 520), min_size=1, max_size=70))
@example([1])
@example([1, 2])
@example([32])
@example([33])
@example([1] * 32)
@example([1] * 64)
@example([1] * 65)
@example([512] * 4)
def test_a_small_batch_has_the_shape_of_a_graph_that_is_captured(lengths: list[int]) -> None:
    batch = _batch(lengths)
    shape = graph_shape(batch)
    if shape is None:
        # Larger batches do not fit, and the shortest sequences need more dummies than a graph has sequences.
        assert sum(lengths) > 1024 or max(lengths) > 512 or len(lengths) >= 16 or max(lengths) < 8
        return
    rounded = append_dummies(batch, *shape)
    assert (rounded.sequences, rounded.tokens, rounded.padded_length) == shape
    assert rounded.lengths.sum() == shape.tokens
    assert rounded.lengths[: len(lengths)].tolist() == lengths
    assert rounded.lengths.min() >= 1
    assert rounded.lengths.max() == max(lengths) <= shape.padded_length
    assert shape in {graph_shape(_batch([*other])) for other in graph_batches(shape.tokens, max(lengths))}


@pytest.mark.parametrize(("longest", "shapes"), [(512, 118), (8192, 118), (64, 53), (20, 20)])
def test_each_shape_is_captured_once_and_there_are_at_most_118(longest: int, shapes: int) -> None:
    captured = [
        graph_shape(_batch([*lengths])) for tokens in GRAPH_TOKENS for lengths in graph_batches(tokens, longest)
    ]
    assert None not in captured
    assert len(captured) == len(set(captured)) == shapes


def test_feature_batches_get_rows_of_zeros() -> None:
    batch = pack([np.ones((19, 3), np.float32)] * 9)
    rounded = round_up_to_buckets(batch)
    assert rounded.rows.shape == (176, 3)
    assert not rounded.rows[171:].any()


@given(lengths=lengths_lists)
@example([1])
@example([512] * 32)
def test_repeated_rows_round_every_size_up_and_no_sequence_reads_them(lengths: list[int]) -> None:
    batch = _batch(lengths)
    names = ("input_ids", "positions", "lengths", "gather", "scatter")
    rounded, own = feeds_in_few_shapes(batch, names), batch.feeds(names)

    tokens, (sequences, longest) = len(rounded["input_ids"]), rounded["gather"].shape
    assert {len(rounded[name]) for name in ("input_ids", "positions", "scatter")} == {tokens}
    assert len(rounded["lengths"]) == sequences
    assert all(map(_is_bucket, (tokens, sequences, longest)))
    assert tokens <= max(batch.tokens, 9 * batch.tokens / 8)
    assert sequences <= max(batch.sequences, 9 * batch.sequences / 8)
    for name in ("input_ids", "positions", "lengths"):
        np.testing.assert_array_equal(rounded[name][: len(own[name])], own[name])
        assert rounded[name].dtype == own[name].dtype
    gather = rounded["gather"][: batch.sequences].astype(np.int64)
    starts, last = batch.starts[:, None], (batch.starts + batch.lengths - 1)[:, None]
    np.testing.assert_array_equal(gather, np.minimum(starts + np.arange(longest), last))
    # Scattered cells are the rows again.
    scatter = rounded["scatter"][: batch.tokens].astype(np.int64)
    np.testing.assert_array_equal(gather.reshape(-1)[scatter], np.arange(batch.tokens))
