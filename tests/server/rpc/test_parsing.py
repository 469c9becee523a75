"""The fields of a message are counted as the parser sees them, and texts that are not UTF-8 harm no other text."""

from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.requests.wire_format import field_tag
from headwaiter_server.rpc.parsing import count_fields, parse_request, repair_texts
from tests.support.server.service_under_test import endless_call

UNKNOWN = b"\xf8\x3f\x01"
NO_LIMIT = 10**9


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (b"", 0),
        (pb.EncodeRequest(texts=pb.Texts(values=["a", "", "b" * 300])).SerializeToString(), 1 + 3),
        (pb.EncodeRequest(model="m", timeout_s=2, output=pb.OutputOptions(hidden=True)).SerializeToString(), 3 + 1),
        (pb.EncodeRequest(tokens=pb.TokenSequences(data=b"x" * 999, lengths=[1] * 25)).SerializeToString(), 1 + 2 + 2),
        (pb.EncodeResponse(pooled=pb.Tensor(row_scales=[0.5] * 1000)).SerializeToString(), 1 + 1),
        (UNKNOWN * 7, 7),
        (b"\x2a\x00" * 5, 5),
        # Malformed: no number, no bytes after the length, an unknown wire type, an endless number.
        (b"\x08", 1),
        (b"\x2a\xff\x01", 1),
        (b"\x0f", 1),
        (b"\xff" * 50, 1),
    ],
)
def test_fields_are_counted(raw: bytes, fields: int) -> None:
    assert count_fields(raw, pb.EncodeRequest.DESCRIPTOR, NO_LIMIT) == fields


def test_counting_stops_above_the_limit() -> None:
    assert count_fields(UNKNOWN * 1000, pb.EncodeRequest.DESCRIPTOR, 10) == 11


async def test_a_large_message_of_few_fields_is_parsed_and_one_of_many_fields_is_refused() -> None:
    large = pb.EncodeRequest(texts=pb.Texts(values=["a" * 100_000] * 4))
    assert await parse_request(large.SerializeToString(), pb.EncodeRequest(), endless_call(), 4) == large
    with pytest.raises(InvalidInput) as refused:
        await parse_request(UNKNOWN * 200_000, pb.EncodeRequest(), endless_call(), 4)
    assert refused.value.limit == 4


HALF = b"\xed\xa0\xbc"


def nested(number: int, *parts: bytes) -> bytes:
    """Return the field with this number, whose value has these parts; texts need not be UTF-8."""
    value = b"".join(parts)
    return field_tag(number, len(value)) + value


def raw_texts(number: int, *texts: bytes) -> bytes:
    """Return texts as the fields with this number."""
    return b"".join(nested(number, text) for text in texts)


@given(
    st.lists(st.one_of(st.binary(max_size=8), st.text(max_size=4).map(str.encode)), max_size=6), st.binary(max_size=9)
)
def test_every_text_that_is_not_utf8_is_named_and_no_other_text_changes(texts: list[bytes], rest: bytes) -> None:
    broken = [index for index, text in enumerate(texts) if text.decode(errors="ignore").encode() != text]
    # Bytes that a later version may send.
    unknown = nested(15, rest)
    repaired, errors = repair_texts(
        nested(5, *(raw_texts(1, each) for each in texts)) + unknown, pb.EncodeRequest.DESCRIPTOR, NO_LIMIT
    )
    assert [(each.sequence, each.field) for each in errors] == [(index, "texts.values") for index in broken]
    values = pb.EncodeRequest.FromString(repaired).texts.values
    assert [text.encode() for text in values] == [
        b"?" * len(text) if i in broken else text for i, text in enumerate(texts)
    ]


@given(st.binary(max_size=60))
def test_any_bytes_are_repaired_or_left_to_the_parser(raw: bytes) -> None:
    repaired, errors = repair_texts(raw, pb.EncodeRequest.DESCRIPTOR, NO_LIMIT)
    assert len(repaired) == len(raw)
    assert (repaired == raw) == (not errors)


def test_only_so_many_fields_are_repaired() -> None:
    raw = nested(5, raw_texts(1, HALF, HALF, HALF))
    assert [each.sequence for each in repair_texts(raw, pb.EncodeRequest.DESCRIPTOR, 3)[1]] == [0, 1]


TEXTS = nested(5, raw_texts(1, b"a", b"b" + HALF, b"c"))
PAIRS = nested(12, raw_texts(1, b"q"), raw_texts(2, b"a", HALF))


@pytest.mark.parametrize(
    ("raw", "field", "sequences"),
    [
        (TEXTS, "texts.values", [1]),
        (PAIRS, "pairs.second", [1]),
        (nested(12, raw_texts(1, b"q", HALF), raw_texts(2, b"a", b"b")), "pairs.first", [1]),
        # The one first text of two pairs.
        (nested(12, raw_texts(1, HALF), raw_texts(2, b"a", b"b")), "pairs.first", [0, 1]),
        # The parser joins the two parts of one field.
        (nested(5, raw_texts(1, b"a")) + TEXTS, "texts.values", [2]),
    ],
)
async def test_the_errors_of_texts_go_into_the_call(raw: bytes, field: str, sequences: list[int]) -> None:
    call = endless_call()
    request = await parse_request(raw + b"\x12\x01r", pb.EncodeRequest(), call, 4)
    assert [(each.field, each.sequence) for each in call.broken_texts] == [(field, each) for each in sequences]
    assert request.request_id == "r"
    assert len(attrgetter(field)(request)) > 0


@pytest.mark.parametrize(
    ("raw", "message", "field"),
    [
        (nested(1, HALF), pb.EncodeRequest, "model"),
        (nested(5, raw_texts(1, b"a"), nested(2, HALF)), pb.EncodeRequest, "texts.prompt"),
        (nested(1, HALF), pb.GetModelRequest, "name"),
        # Of two inputs, the parser keeps the last one.
        (TEXTS + PAIRS, pb.EncodeRequest, "texts.values"),
        (TEXTS + nested(12) + nested(5, raw_texts(1, b"a", b"b")), pb.EncodeRequest, "texts.values"),
        (TEXTS + b"\x0a\x05abc", pb.EncodeRequest, None),
        (b"\x0b" + TEXTS, pb.EncodeRequest, None),
    ],
)
async def test_a_message_is_refused_if_a_broken_text_belongs_to_no_sequence(
    raw: bytes, message: Any, field: str | None
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await parse_request(raw, message(), endless_call(), 4)
    assert refused.value.field == field
