"""The sequences of a request are read as they were sent, or refused with the field, the sequence and the values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.sequences import (
    MAX_BYTES_OF_ONE_TEXT,
    check_texts,
    read_features,
    read_prompt,
    read_tokenized,
    read_tokens,
)

TOKENS = Manifest(name="tiny", vocabulary_size=10, max_tokens=4, width=8, pooling=pb.POOLING_MEAN)
FEATURES = Manifest(name="tiny", feature_width=2, max_tokens=4, width=8, pooling=pb.POOLING_NONE)
LIMITS = RequestLimits(sequences=3, tokens=8, message_bytes=1000, attend_bytes=1000)


def _tokens(values: list[int], lengths: list[int], dtype: Any = pb.DATA_TYPE_INT32, stored: str = "<i4") -> Any:
    return pb.TokenSequences(dtype=dtype, data=np.array(values, stored).tobytes(), lengths=lengths)


def _features(values: list[float], lengths: list[int], **changes: Any) -> pb.FeatureSequences:
    message = {"dtype": pb.DATA_TYPE_FLOAT32, "width": 2, "data": np.array(values, "<f4").tobytes(), **changes}
    return pb.FeatureSequences(lengths=lengths, **message)


def _read(message: pb.TokenSequences | pb.FeatureSequences) -> list[list[Any]]:
    if isinstance(message, pb.TokenSequences):
        parsed = read_tokens(message, TOKENS, LIMITS, Failures())
    else:
        parsed = read_features(message, FEATURES, LIMITS, Failures())
    return [sequence.tolist() for sequence in parsed.sequences]


@pytest.mark.parametrize(("dtype", "stored"), [(pb.DATA_TYPE_FLOAT32, "<f4"), (pb.DATA_TYPE_FLOAT16, "<f2")])
def test_features_are_read_from_either_float_type(dtype: pb.DataType, stored: str) -> None:
    data = np.array([0.5, -1, 2, 3], stored).tobytes()
    assert _read(_features([], [1, 1], dtype=dtype, data=data)) == [[[0.5, -1.0]], [[2.0, 3.0]]]


def test_sequences_are_views_of_one_buffer() -> None:
    first, second = read_tokens(_tokens([1, 2, 3], [1, 2]), TOKENS, LIMITS, Failures()).sequences
    assert first.base is second.base is not None
    assert not first.flags.writeable


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=2),
    st.sampled_from([(pb.DATA_TYPE_INT32, "<i4"), (pb.DATA_TYPE_INT64, "<i8")]),
)
def test_token_ids_are_read_as_they_were_sent(sequences: list[list[int]], stored: tuple[pb.DataType, str]) -> None:
    flat = [value for sequence in sequences for value in sequence]
    assert _read(_tokens(flat, [len(sequence) for sequence in sequences], *stored)) == sequences


# tests/support/e2e/bad_requests.py has the other refusals.
def test_a_length_of_32_bits_is_too_long() -> None:
    with pytest.raises(SequenceTooLong) as refusal:
        _read(_tokens([1], [1, 2**32 - 1]))
    found = refusal.value
    assert (found.field, found.sequence, found.limit, found.actual) == ("tokens.lengths", 1, 4, 2**32 - 1)


def test_the_first_error_of_each_sequence_is_kept_on_request() -> None:
    limits = RequestLimits(sequences=9, tokens=99, message_bytes=1000, attend_bytes=1000)
    failures = Failures(keep=True)
    message = _tokens([1, 2, 9, 10, 11, *[1] * 5, 12, 3], [2, 3, 0, 5, 2])
    sequences = read_tokens(message, TOKENS, limits, failures).sequences
    assert sequences[0].tolist() == [1, 2]
    found = {index: (type(error), error.actual) for index, error in failures.by_sequence.items()}
    assert found == {1: (InvalidInput, 10), 2: (InvalidInput, None), 3: (SequenceTooLong, 5), 4: (InvalidInput, 12)}

    failures = Failures(keep=True)
    message = _features([0, 0, float("nan"), 0, 1, 2, 3, float("inf")], [1, 1, 2])
    first, _, _ = read_features(message, FEATURES, limits, failures).sequences
    assert first.tolist() == [[0, 0]]
    assert {index: error.sequence for index, error in failures.by_sequence.items()} == {1: 1, 2: 2}


def test_texts_that_have_too_many_bytes_are_refused_before_tokenisation() -> None:
    failures = Failures(keep=True)
    size = MAX_BYTES_OF_ONE_TEXT
    check_texts(["a", "", "a" * size, "a" * (size + 1), "é" * (size // 2), "a" + "é" * (size // 2)], failures)
    errors = failures.by_sequence
    facts = {
        index: (type(error), error.sequence, error.field, error.limit, error.actual) for index, error in errors.items()
    }
    assert facts == {index: (InvalidInput, index, "texts", size, size + 1) for index in (3, 5)}


def test_an_error_about_a_prompt_is_short_enough_for_a_reply() -> None:
    many = Manifest(max_text_tokens=4, prompts=[pb.Prompt(name=f"prompt {number}") for number in range(1000)])
    with pytest.raises(InvalidInput) as refusal:
        read_prompt(pb.Texts(values=["a"], prompt="x" * 10_000), many, LIMITS)
    assert "x" * 256 in str(refusal.value)
    assert len(str(refusal.value)) < 700


def test_the_tokens_of_texts_are_checked_and_those_of_a_prompt_are_skipped() -> None:
    prompt = pb.Prompt(name="query", text="query: ", tokens=2)
    for skips, skipped_tokens in ((True, 2), (False, 0)):
        model = Manifest(max_tokens=4, max_text_tokens=4, pooling_skips_prompt=skips)
        parsed = read_tokenized([np.arange(3), np.arange(4)], prompt, model, LIMITS, Failures())
        assert parsed.skipped_tokens == skipped_tokens
    with pytest.raises(InvalidInput) as refusal:
        read_tokenized([np.arange(4)] * 3, prompt, model, LIMITS, Failures())
    assert (refusal.value.limit, refusal.value.actual) == (8, 12)
