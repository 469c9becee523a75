"""Sparse vectors lose nothing on their way through a reply, and a reply that does not add up is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.sparse import (
    dense_vectors,
    entries_of,
    sparse_message,
    sparse_vectors,
    weighted_tokens,
)
from tests.support.oracle import Array

_VALUES = st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 3.25, -2.0])
_VECTORS = arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=_VALUES.map(np.float32))


@given(_VECTORS, st.sampled_from([pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT16]), st.data())
def test_entries_are_the_numbers_that_are_not_zero(vectors: Array, dtype: pb.DataType, data: Any) -> None:
    entries = sparse_vectors(vectors)
    assert [len(each) for each in entries] == np.count_nonzero(vectors, axis=1).tolist()
    np.testing.assert_array_equal(dense_vectors(entries, vectors.shape[1]), vectors)
    # Some sequences of the request failed: their length is 0.
    lengths = [1] * len(vectors)
    for place in sorted(data.draw(st.lists(st.integers(0, len(vectors)), max_size=3))):
        lengths.insert(place, 0)
    read = entries_of(sparse_message(entries, lengths, dtype))
    assert [len(each) for each, length in zip(read, lengths, strict=True) if not length] == [0] * lengths.count(0)
    answered = [each for each, length in zip(read, lengths, strict=True) if length]
    np.testing.assert_array_equal(dense_vectors(answered, vectors.shape[1]), vectors)
    assert all(each["value"].dtype == ("<f4" if dtype == pb.DATA_TYPE_FLOAT32 else "<f2") for each in read)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 3.0])), max_size=12),
    st.sets(st.integers(0, 9), max_size=3),
)
def test_the_number_of_a_token_id_is_the_largest_weight_of_its_tokens(
    tokens: list[tuple[int, float]], unweighted: set[int]
) -> None:
    expected: dict[int, float] = {}
    for token_id, weight in tokens:
        if weight and token_id not in unweighted:
            expected[token_id] = max(weight, expected.get(token_id, 0.0))
    ids, weights = np.array([each for each, _ in tokens], int), np.array([each for _, each in tokens], np.float32)
    entries = weighted_tokens(ids, weights, unweighted)
    assert entries["index"].tolist() == sorted(expected)
    assert entries["value"].tolist() == [expected[each] for each in sorted(expected)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"counts": [1, 2]}, ValueError),
        ({"indices": bytes(4)}, ValueError),
        ({"indices": bytes(7)}, ValueError),
        ({"values": bytes(12)}, ValueError),
        ({"dtype": pb.DATA_TYPE_FLOAT16}, ValueError),
        ({"dtype": pb.DATA_TYPE_INT8}, KeyError),
        ({"dtype": 99}, KeyError),
    ],
)
def test_a_message_that_does_not_add_up_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    fields: dict[str, Any] = {"dtype": pb.DATA_TYPE_FLOAT32, "counts": [1, 1], "indices": bytes(8), "values": bytes(8)}
    entries_of(pb.SparseVectors(**fields))
    with pytest.raises(error):
        entries_of(pb.SparseVectors(**{**fields, **changes}))


def test_a_request_of_failed_sequences_has_no_entries() -> None:
    assert [len(each) for each in entries_of(sparse_message([], [0, 0], pb.DATA_TYPE_FLOAT32))] == [0, 0]
