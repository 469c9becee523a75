"""Sequences of any number go in requests that stay within the limits the server states."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import HeadwaiterError, InvalidInput, MessageTooLarge, Overloaded, SequenceTooLong
from headwaiter_client.calls.inputs import Features, Texts, Tokens
from headwaiter_client.calls.splitting import Chunk, Cutter, Limits, cut, halves, is_too_much, limits_of
from headwaiter_proto import encoder_pb2 as pb

_LIMITS = st.builds(
    Limits,
    sequences=st.integers(1, 20),
    tokens=st.integers(1, 200),
    size_bytes=st.integers(1, 3000),
    text_tokens=st.integers(1, 40),
)
_TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=60)
_IDS = st.lists(st.lists(st.just(7), max_size=40), max_size=60)
_ROWS = st.lists(st.integers(0, 40).map(lambda rows: [[0.5, 1.5]] * rows or [[2.5, 3.5]]), max_size=60)


@given(_TEXTS | _IDS | _ROWS, _LIMITS)
def test_every_sequence_goes_once_in_order_and_every_request_is_within_the_limits(
    sequences: Sequence[Any], limits: Limits
) -> None:
    chunks = list(cut(Cutter(limits, None, partial=False), sequences))

    assert [chunk.first + row for chunk in chunks for row in range(len(chunk.sequences))] == list(range(len(sequences)))
    assert [len(sequence) for chunk in chunks for sequence in chunk.sequences] == list(map(len, sequences))
    for chunk in chunks:
        request = pb.EncodeRequest(model="m" * 100, request_id="r" * 256)
        chunk.form.fill(request, chunk.sequences)
        # A sequence by itself cannot be split further: whether it is too much, the server says.
        if len(chunk.sequences) > 1:
            assert len(chunk.sequences) <= limits.sequences
            assert _most_tokens(chunk, limits) <= limits.tokens
            assert request.texts.ByteSize() <= 16 * limits.tokens
            assert request.ByteSize() <= limits.size_bytes


@pytest.mark.parametrize(
    ("read_s", "sizes", "hurried"),
    [
        ([0.0] * 7, [3, 3, 1], [False] * 3),
        # The time it took to read a full request is not held against the next.
        ([0.03] * 7, [3, 3, 1], [False] * 3),
        # What was slow to come waits for nothing more.
        ([9.0] * 4, [1, 1, 1, 1], [True] * 4),
        ([0.06] * 5, [2, 2, 1], [True, True, False]),
        ([0.0, 0.0, 0.0, 9.0, 0.0, 0.0], [3, 1, 2], [False, True, False]),
    ],
)
def test_what_a_slow_source_gave_is_not_kept_until_a_request_is_full(
    read_s: list[float], sizes: list[int], hurried: list[bool]
) -> None:
    cutter = Cutter(Limits(3, 99, 9999, 9), None, partial=False)
    chunks = [chunk for one_s in read_s for chunk in cutter.add("text", one_s)] + cutter.end()
    assert [len(chunk.sequences) for chunk in chunks] == sizes
    assert [chunk.hurried for chunk in chunks] == hurried


def _most_tokens(chunk: Chunk, limits: Limits) -> int:
    """Counts as many as a server can find: bytes of text, or the model's most."""
    if isinstance(chunk.form, Texts):
        return sum(min(len(text.encode()), limits.text_tokens) for text in chunk.sequences)
    return sum(map(len, chunk.sequences))


_SERVER = pb.GetModelResponse(
    max_text_tokens=512,
    width=1024,
    limits=pb.RequestLimits(max_sequences=4096, max_tokens=65536, max_message_bytes=1 << 24),
)


def test_requests_stay_within_what_the_server_takes_and_small_enough_to_share_among_replicas() -> None:
    assert limits_of(_SERVER, hidden=False, timeout_s=30.0, in_flight=8) == Limits(256, 65536, 1 << 24, 512)
    strict = pb.GetModelResponse(limits=pb.RequestLimits(max_sequences=3))
    assert limits_of(strict, hidden=False, timeout_s=30.0, in_flight=8).sequences == 3


def test_requests_for_hidden_states_have_replies_of_8_mib_at_most() -> None:
    assert limits_of(_SERVER, hidden=True, timeout_s=30.0, in_flight=8).tokens * 1024 * 4 == 8 << 20


def test_what_is_on_its_way_takes_the_server_a_quarter_of_the_deadline() -> None:
    slow = pb.GetModelResponse()
    slow.CopyFrom(_SERVER)
    slow.execution.cost.service_tokens_per_s = 800
    assert limits_of(slow, hidden=False, timeout_s=30.0, in_flight=8).tokens * 8 / 800 == 7.5
    assert limits_of(slow, hidden=False, timeout_s=math.inf, in_flight=8).tokens == 65536


@pytest.mark.parametrize(
    ("error", "too_much"),
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
def test_only_what_a_request_holds_altogether_is_worth_sending_in_halves(
    error: HeadwaiterError, too_much: bool
) -> None:
    assert is_too_much(error) is too_much


def test_halves_keep_places_and_failures() -> None:
    early, late = InvalidInput("a"), InvalidInput("b")
    form = Texts()
    assert halves(Chunk(form, 10, ["p", "q", "r"], {10: early, 12: late})) == [
        Chunk(form, 10, ["p"], {10: early}),
        Chunk(form, 11, ["q", "r"], {12: late}),
    ]


@pytest.mark.parametrize(
    ("good", "bad", "form"), [("a", "\ud800", Texts()), ([1], [0.5], Tokens()), ([[1.0]], [[1.0, 2.0]], Features())]
)
def test_what_cannot_be_sent_is_left_out_of_a_partial_call_alone(good: Any, bad: Any, form: Any) -> None:
    (chunk,) = cut(Cutter(Limits(9, 99, 9999, 9), form, partial=True), [good, bad, good])
    assert list(map(len, chunk.sequences)) == [1, 0, 1]
    assert {index: error.sequence for index, error in chunk.failures.items()} == {1: 1}
    with pytest.raises(InvalidInput, match=r"^sequence 1 "):
        list(cut(Cutter(Limits(9, 99, 9999, 9), form, partial=False), [good, bad]))


def test_features_whose_width_nobody_knows_yet_cannot_be_left_out() -> None:
    with pytest.raises(InvalidInput, match=r"^sequence 0 "):
        list(cut(Cutter(Limits(9, 99, 9999, 9), Features(), partial=True), [[1.0]]))
