"""FakeEncoder refuses bad requests with the errors of a server."""

import pytest

from headwaiter_client import Client, FakeEncoder, HeadwaiterError
from headwaiter_proto.rules.status import code_of
from tests.support.e2e.bad_requests import LARGEST_ID, TO_FEATURE_MODEL, TO_TEXT_MODEL, BadRequest

TEXT_MODEL = FakeEncoder(
    model="tiny-text",
    width=32,
    vocabulary_size=LARGEST_ID + 1,
    feature_width=0,
    max_tokens=64,
    max_text_tokens=32,
    max_request_sequences=8,
    max_request_tokens=96,
    layers=2,
    heads=4,
)
FEATURE_MODEL = FakeEncoder(width=32, vocabulary_size=0, feature_width=6, max_tokens=48)
# A fake has no gRPC, and no streams.
WITHOUT_GRPC = [
    (fake, bad)
    for fake, table in ((TEXT_MODEL, TO_TEXT_MODEL), (FEATURE_MODEL, TO_FEATURE_MODEL))
    for bad in table
    if not bad.refused_by_client and bad.method != "EncodeStream"
]


def test_all_but_three_bad_requests_are_sent_to_a_fake() -> None:
    assert len(WITHOUT_GRPC) == len(TO_TEXT_MODEL) + len(TO_FEATURE_MODEL) - 3


@pytest.mark.parametrize(("fake", "bad"), WITHOUT_GRPC, ids=[bad.name for _, bad in WITHOUT_GRPC])
def test_a_fake_refuses_a_bad_request_as_a_server_does(fake: FakeEncoder, bad: BadRequest) -> None:
    with pytest.raises(HeadwaiterError) as refused:
        _send(fake, bad)
    bad.check(refused.value)
    assert code_of(refused.value) is bad.code


def _send(fake: FakeEncoder, bad: BadRequest) -> None:
    if callable(bad.request):
        bad.request(Client(transport=fake))
    else:
        raw = bad.request if isinstance(bad.request, bytes) else bad.request.SerializeToString()
        fake.unary(f"/headwaiter.v1.Encoder/{bad.method}", raw, timeout_s=1.0)
