"""Sequences are divided in source and target, and a sequence that cannot be divided is refused alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.sequences import ParsedInput, read_features, read_tokens
from headwaiter_proto.rules.target import with_parts

START = 3
LIMITS = RequestLimits(sequences=99, tokens=999, message_bytes=10_000, attend_bytes=1000)
IDS = Manifest(vocabulary_size=10, min_tokens=2, max_tokens=9, target=pb.TargetFormat(start_id=START))
FEATURES = Manifest(feature_width=2, min_tokens=2, max_tokens=9, target=pb.TargetFormat())

source_ids = st.lists(st.integers(0, 9).filter(lambda token: token != START), min_size=1, max_size=4)
target_ids = st.lists(st.integers(0, 9), max_size=4).map(lambda ids: [START, *ids])


def read_ids(sequences: list[list[int]], failures: Failures) -> ParsedInput:
    ids = np.array([token for sequence in sequences for token in sequence], "<i4")
    message = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids.tobytes(), lengths=map(len, sequences))
    return read_tokens(message, IDS, LIMITS, failures)


def read_parts(parts: list[list[float]], failures: Failures) -> ParsedInput:
    """Read features whose last values are given."""
    last = np.array([value for sequence in parts for value in sequence], "<f4")
    data = np.stack([np.ones_like(last), last], axis=1).tobytes()
    message = pb.FeatureSequences(dtype=pb.DATA_TYPE_FLOAT32, width=2, data=data, lengths=map(len, parts))
    return read_features(message, FEATURES, LIMITS, failures)


@given(st.lists(st.tuples(source_ids, target_ids), min_size=1, max_size=5))
def test_a_target_begins_at_the_first_start_token(pairs: list[tuple[list[int], list[int]]]) -> None:
    sequences = [source + target for source, target in pairs]
    parsed = read_ids(sequences, Failures())
    assert parsed.kept_rows is not None
    for sequence, read, kept, (source, target) in zip(
        sequences, parsed.sequences, parsed.kept_rows, pairs, strict=True
    ):
        is_target = [0] * len(source) + [1] * len(target)
        assert read.tolist() == [list(row) for row in zip(sequence, is_target, strict=True)]
        assert kept.tolist() == is_target


@pytest.mark.parametrize("wrong", [[START, 1], [1, 2], [START, 1, START]])
def test_ids_without_a_source_or_a_target_are_refused_alone(wrong: list[int]) -> None:
    good = [1, START, 2]
    failures = Failures(keep=True)
    parsed = read_ids([good, wrong, good], failures)
    assert [each[:, 1].tolist() for each in (parsed.sequences[0], parsed.sequences[2])] == [[0, 1, 1]] * 2
    (index, error), *others = failures.by_sequence.items()
    assert not others
    assert (index, type(error), error.sequence, error.field) == (1, InvalidInput, 1, "tokens.data")
    assert f"token id {START}" in str(error)
    with pytest.raises(InvalidInput):
        read_ids([good, wrong], Failures())


@pytest.mark.parametrize("wrong", [[0, 0], [1, 1], [1, 0], [0, 1, 0], [0, 0.5, 1], [0, 2], [0, 1, 2]])
def test_features_that_are_not_divided_are_refused_alone(wrong: list[float]) -> None:
    failures = Failures(keep=True)
    parsed = read_parts([[0, 0, 1], wrong, [0, 1]], failures)
    assert parsed.kept_rows is not None
    assert [parsed.kept_rows[index].tolist() for index in (0, 2)] == [[False, False, True], [False, True]]
    (index, error), *others = failures.by_sequence.items()
    assert not others
    assert (index, type(error), error.field) == (1, InvalidInput, "features.data")


def test_one_row_is_too_short_for_a_source_and_a_target() -> None:
    failures = Failures(keep=True)
    read_ids([[START], [1]], failures)
    assert {index: (error.field, error.limit) for index, error in failures.by_sequence.items()} == {
        0: ("tokens.lengths", 2),
        1: ("tokens.lengths", 2),
    }


def test_parts_are_found_within_each_sequence() -> None:
    # The first sequence has no start token, and must not take that of the second.
    failures = Failures(keep=True)
    assert with_parts(np.array([1, 2, 4, START]), [2, 4], START, failures)[:, 1].tolist() == [0, 0, 0, 1]
    assert list(failures.by_sequence) == [0]
