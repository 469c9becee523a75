"""The limits of a request, as GetModel reports them."""

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.limits import RequestLimits


def test_the_limit_on_text_bytes_is_below_the_message_limit() -> None:
    limits = RequestLimits(sequences=5, tokens=6, message_bytes=97, attend_bytes=8)
    assert limits.message() == pb.RequestLimits(
        max_sequences=5, max_tokens=6, max_message_bytes=97, max_attend_bytes=8, max_text_bytes=96
    )
    assert RequestLimits(5, 7, 97, 8).text_bytes == 97
