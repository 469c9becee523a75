"""Splitting sequences into requests within the server's limits."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter_client import HeadwaiterError, InvalidInput, MessageTooLarge, Overloaded, SequenceTooLong
from headwaiter_client.calls.input_kinds import FeatureInput, InputKind, TextInput, TokenInput
from headwaiter_client.calls.splitting import (
    Chunk,
    ChunkLimits,
    SequenceConverter,
    chunk_limits,
    is_request_too_large,
    regroup,
    split_in_half,
)
from headwaiter_proto import encoder_pb2 as pb

_LIMITS = st.builds(
    ChunkLimits,
    sequences=st.integers(1, 20),
    tokens=st.integers(1, 200),
    size_bytes=st.integers(1, 3000),
    text_tokens=st.integers(1, 40),
)
_TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=60)
_IDS = st.lists(st.lists(st.just(7), max_size=40), max_size=60)
_ROWS = st.lists(st.integers(0, 40).map(lambda rows: [[0.5, 1.5]] * rows or [[2.5, 3.5]]), max_size=60)


@given(_TEXTS | _IDS | _ROWS, _LIMITS)
@settings(max_examples=50)
def test_each_sequence_is_sent_once_in_order_and_each_request_is_within_the_limits(
    sequences: list[Any], limits: ChunkLimits
) -> None:
    chunks = _chunks(sequences, limits)

    assert [chunk.first + row for chunk in chunks for row in range(len(chunk.sequences))] == list(range(len(sequences)))
    assert [len(sequence) for chunk in chunks for sequence in chunk.sequences] == list(map(len, sequences))
    for chunk in chunks:
        request = pb.EncodeRequest(model="m" * 100, request_id="r" * 256)
        chunk.kind.fill(request, chunk.sequences)
        # A request with one sequence cannot be split: the server decides whether the sequence is too large.
        if len(chunk.sequences) > 1:
            assert len(chunk.sequences) <= limits.sequences
            assert _most_tokens(chunk, limits) <= limits.tokens
            assert request.texts.ByteSize() <= 16 * limits.tokens
            assert request.ByteSize() <= limits.size_bytes


def _chunks(
    sequences: list[Any], limits: ChunkLimits, kind: InputKind | None = None, *, partial: bool = False
) -> list[Chunk]:
    """Convert sequences in parts of 20, and group them into chunks."""
    converter = SequenceConverter(kind, partial=partial)
    parts = [converter.convert(sequences[start : start + 20]) for start in range(0, len(sequences), 20)]
    return list(regroup(parts, limits))


def test_texts_that_cannot_fit_together_are_not_joined_to_be_checked() -> None:
    assert TextInput().size_of_all(["x" * (1 << 20), "y"]) is None


def _most_tokens(chunk: Chunk, limits: ChunkLimits) -> int:
    """Return the most tokens that the server can count: the bytes of a text, at most the model's maximum."""
    if isinstance(chunk.kind, TextInput):
        return sum(min(len(text.encode()), limits.text_tokens) for text in chunk.sequences)
    return sum(map(len, chunk.sequences))


_SERVER = pb.GetModelResponse(
    max_text_tokens=512,
    width=1024,
    limits=pb.RequestLimits(max_sequences=4096, max_tokens=65536, max_message_bytes=1 << 24),
)


def test_requests_stay_within_the_servers_limits_and_hold_at_most_256_sequences() -> None:
    assert chunk_limits(_SERVER, hidden=False, timeout_s=30.0, max_in_flight=8) == ChunkLimits(256, 65536, 1 << 24, 512)
    strict = pb.GetModelResponse(limits=pb.RequestLimits(max_sequences=3))
    assert chunk_limits(strict, hidden=False, timeout_s=30.0, max_in_flight=8).sequences == 3


def test_replies_with_hidden_vectors_are_at_most_8_mib() -> None:
    assert chunk_limits(_SERVER, hidden=True, timeout_s=30.0, max_in_flight=8).tokens * 1024 * 4 == 8 << 20
    wide_rows = pb.GetModelResponse()
    wide_rows.CopyFrom(_SERVER)
    wide_rows.hidden_width = 4096
    assert chunk_limits(wide_rows, hidden=True, timeout_s=30.0, max_in_flight=8).tokens * 4096 * 4 == 8 << 20


def test_the_requests_in_flight_take_the_server_at_most_a_quarter_of_the_deadline() -> None:
    slow = pb.GetModelResponse()
    slow.CopyFrom(_SERVER)
    slow.execution.cost.service_tokens_per_s = 800
    assert chunk_limits(slow, hidden=False, timeout_s=30.0, max_in_flight=8).tokens * 8 / 800 == 7.5
    assert chunk_limits(slow, hidden=False, timeout_s=math.inf, max_in_flight=8).tokens == 65536


@pytest.mark.parametrize(
    ("error", "too_large"),
    [
        (InvalidInput("the request has 9 tokens", limit=8, actual=9), True),
        (InvalidInput("texts: 200 bytes in all", field="texts", limit=128, actual=200), True),
        (MessageTooLarge("larger than max"), True),
        (SequenceTooLong("sequence 0 has 9 tokens", sequence=0, limit=8, actual=9), False),
        (InvalidInput("features.width is 3", field="features.width", limit=2, actual=3), False),
        (InvalidInput("texts: the model has no tokenizer", field="texts"), False),
        (Overloaded("the queue is full", limit=8, actual=9), False),
    ],
)
def test_only_a_request_refused_for_its_total_size_is_split(error: HeadwaiterError, too_large: bool) -> None:
    assert is_request_too_large(error) is too_large


def test_the_halves_of_a_chunk_keep_indices_and_failures() -> None:
    early, late = InvalidInput("a"), InvalidInput("b")
    kind = TextInput()
    assert split_in_half(Chunk(kind, 10, ["p", "q", "r"], {10: early, 12: late})) == [
        Chunk(kind, 10, ["p"], {10: early}),
        Chunk(kind, 11, ["q", "r"], {12: late}),
    ]


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [("a", "\ud800", TextInput()), ([1], [0.5], TokenInput()), ([[1.0]], [[1.0, 2.0]], FeatureInput())],
)
def test_a_partial_call_leaves_out_only_the_sequences_that_cannot_be_sent(good: Any, bad: Any, kind: Any) -> None:
    (chunk,) = _chunks([good, bad, good], ChunkLimits(9, 99, 9999, 9), kind, partial=True)
    assert list(map(len, chunk.sequences)) == [1, 0, 1]
    assert {index: error.sequence for index, error in chunk.failures.items()} == {1: 1}
    with pytest.raises(InvalidInput) as caught:
        _chunks([good, bad], ChunkLimits(9, 99, 9999, 9), kind)
    assert caught.value.sequence == 1


def test_a_partial_call_cannot_leave_out_features_before_it_knows_their_width() -> None:
    with pytest.raises(InvalidInput) as caught:
        _chunks([[1.0]], ChunkLimits(9, 99, 9999, 9), FeatureInput(), partial=True)
    assert caught.value.sequence == 0
