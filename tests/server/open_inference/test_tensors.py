"""Tensors of the Open Inference Protocol survive the way in and out, raw or in order, with padding on either side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.open_inference.tensors import Input, kept_positions, pad, read_array, read_texts


def tensor(datatype: str, shape: Sequence[int], values: Any) -> Input:
    return Input("x", datatype, shape, values)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (tensor("INT32", [2, 3], bytes(20)), "20 bytes; its shape [2, 3] takes 6 values of 4 bytes"),
        (tensor("INT64", [2], np.ones(1, np.int64)), "1 values; its shape [2] takes 2 values"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(described: Input, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_array(described)
    assert refused.value.field == "x"
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("shape", "raw"),
    [
        ([1], b""),
        ([1], b"\x01\0\0"),
        ([1], b"\x02\0\0\0a"),
        ([1], b"\x01\0\0\0ab"),
        ([1], b"\x01\0\0\0a\0\0\0\0"),
        ([2], b"\x01\0\0\0a"),
        ([1], b"\xff\xff\xff\xff"),
    ],
)
def test_malformed_texts_are_refused(shape: list[int], raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="values of BYTES"):
        read_texts(tensor("BYTES", shape, raw))


def test_a_wrong_number_of_texts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 values") as refused:
        read_texts(tensor("BYTES", [2], ["a"]))
    assert refused.value.field == "x"


def test_a_text_that_is_not_utf8_is_refused_with_its_index() -> None:
    with pytest.raises(InvalidInput, match="sequence 1 is not UTF-8 at byte 1") as refused:
        read_texts(tensor("BYTES", [2], [b"a", b"b\xff"]))
    assert refused.value.sequence == 1
    with pytest.raises(InvalidInput, match=r"sequence 0 .*\(U\+D83C\)") as refused:
        read_texts(tensor("BYTES", [1], b"\x04\0\0\0b\xed\xa0\xbc"))
    assert (refused.value.sequence, refused.value.field) == (0, "x")


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5), st.integers(0, 2))
def test_padding_on_either_side_is_stripped_and_padding_on_the_right_is_added(
    rows: list[tuple[int, bool]], more: int
) -> None:
    lengths = [length for length, _ in rows]
    padded_length = max(lengths) + more
    mask = np.zeros((len(rows), padded_length), np.int64)
    for row, (length, left) in enumerate(rows):
        mask[row, padded_length - length :] = left
        mask[row, :length] |= not left
    kept = kept_positions(mask)
    assert kept.sum(axis=1).tolist() == lengths
    values = np.arange(1, sum(lengths) + 1)[:, None] * np.ones((1, 2))
    packed = pad(values, lengths, None)
    assert packed.shape == (len(rows), max(lengths), 2)
    np.testing.assert_array_equal(packed[packed.any(axis=2)], values)
    for row, length in zip(packed, lengths, strict=True):
        assert not row[length:].any()
    placed = pad(values, lengths, kept)
    assert placed.shape == (*mask.shape, 2)
    np.testing.assert_array_equal(placed.any(axis=2), kept)
    np.testing.assert_array_equal(placed[kept], values)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[1, 1], [0, 0]], "sequence 1 has no 1"),
        (np.zeros((2, 0), np.int64), "sequence 0 has no 1"),
        ([[1, 1, 1], [1, 0, 1]], "between two ones"),
        ([[1, 1], [2, 1]], "values other than 0 and 1"),
        ([[1, 1], [-1, 0]], "values other than 0 and 1"),
    ],
)
def test_a_wrong_mask_is_refused_with_its_sequence(mask: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        kept_positions(np.array(mask))
    assert (refused.value.sequence, refused.value.field) == (int("sequence 0" not in words), "attention_mask")
    assert words in str(refused.value)
