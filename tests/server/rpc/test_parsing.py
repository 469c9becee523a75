"""The fields of a message are counted as the parser sees them, and only up to a limit."""

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.rpc.parsing import count_fields, parse_request

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
    assert await parse_request(large.SerializeToString(), pb.EncodeRequest(), 4) == large
    with pytest.raises(InvalidInput) as refused:
        await parse_request(UNKNOWN * 200_000, pb.EncodeRequest(), 4)
    assert refused.value.limit == 4
