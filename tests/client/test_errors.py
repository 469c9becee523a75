"""Each kind of failure has its own class, in the threaded and in the asyncio client."""

from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from headwaiter_client import (
    Cancelled,
    Client,
    FakeEncoder,
    HeadwaiterError,
    InvalidInput,
    MessageTooLarge,
    Overloaded,
    RetryPolicy,
    SequenceTooLong,
    Unavailable,
)
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import ERROR_BY_REASON
from tests.support.client.both_clients import open_client
from tests.support.client.fake_server import Call, FakeServer

# The class of an error without details of a Headwaiter server, and what its message advises to look at. gRPC turns the
# HTTP statuses of proxies into these codes.
_CLASSES = {
    "INVALID_ARGUMENT": ("InvalidInput", "address"),
    "RESOURCE_EXHAUSTED": ("Overloaded", "proxy"),
    "DEADLINE_EXCEEDED": ("DeadlineExceeded", "timeout_s"),
    "CANCELLED": ("Unavailable", "shutting down"),
    "UNAVAILABLE": ("Unavailable", "address"),
    "UNAUTHENTICATED": ("Unauthenticated", "credentials"),
    "PERMISSION_DENIED": ("Unauthenticated", "credentials"),
    "UNIMPLEMENTED": ("Unimplemented", "version"),
}
_OTHER = ("HeadwaiterError", "address")


def _info(reason: str, **metadata: str) -> Message:
    info: Message = error_details_pb2.ErrorInfo(reason=reason, domain="headwaiter", metadata=metadata)
    return info


def _fail(call: Call, server: FakeServer) -> HeadwaiterError:
    with pytest.raises(HeadwaiterError) as caught:
        call(server, "encode", ["a text"], request_id="r-1")
    return caught.value


@pytest.mark.parametrize(("seconds", "nanos"), [(1 << 62, 0), (-(1 << 62), 0), (315_576_000_001, 0), (-1, 0), (0, -5)])
def test_a_delay_that_protobuf_does_not_allow_is_ignored(
    call: Call, server: FakeServer, seconds: int, nanos: int
) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos))
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", _info("OVERLOADED"), delay)
    error = _fail(call, server)
    assert isinstance(error, Overloaded)
    assert error.retry_after_s is None


@pytest.mark.parametrize("number", ["1" * 5000, "9" * 21, "-", "x", "", "²"])
@pytest.mark.parametrize("name", ["sequence", "limit", "actual"])
def test_a_number_that_has_no_64_bits_is_ignored(call: Call, server: FakeServer, name: str, number: str) -> None:
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "no", _info("INVALID_INPUT", **{name: number}))
    error = _fail(call, server)
    assert isinstance(error, InvalidInput)
    assert getattr(error, name) is None


@pytest.mark.parametrize("reason", ERROR_BY_REASON)
def test_the_reason_decides_the_class(call: Call, server: FakeServer, reason: str) -> None:
    server.refuse(grpc.StatusCode.UNKNOWN, "what was wrong", _info(reason))
    error = _fail(call, server)
    assert type(error).__name__ == "".join(word.title() for word in reason.split("_"))
    if reason == "MESSAGE_TOO_LARGE":  # The client adds the index of the request's only sequence.
        assert "what was wrong" in str(error)
        assert "sequence 0" in str(error)
    else:
        assert str(error) == "what was wrong"
    assert error.request_id == "r-1"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
@pytest.mark.parametrize("details", [(), (error_details_pb2.ErrorInfo(reason="INVALID_INPUT", domain="proxy"),)])
def test_without_details_of_a_headwaiter_server_the_code_decides_the_class(
    call: Call, server: FakeServer, code: grpc.StatusCode, details: tuple[Message, ...]
) -> None:
    server.refuse(code, "what was wrong", *details)
    error = _fail(call, server)
    kind, advice = _CLASSES.get(code.name, _OTHER)
    assert type(error).__name__ == kind
    assert advice in str(error)
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        assert "what was wrong" not in str(error)  # The message of gRPC says less than that of the client.
    else:
        assert str(error).startswith(f"no Headwaiter server answered ({code.name}: what was wrong): ")


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_an_unknown_reason_of_a_newer_server_leaves_the_code_and_the_message(
    call: Call, server: FakeServer, code: grpc.StatusCode
) -> None:
    server.refuse(code, "what was wrong", _info("NEWER"))
    error = _fail(call, server)
    assert type(error).__name__ == _CLASSES.get(code.name, _OTHER)[0]
    assert "what was wrong" in str(error)


def test_a_fault_of_the_server_is_not_inference_failed(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.INTERNAL, "the server has a fault", _info("ERROR_REASON_UNSPECIFIED"))
    assert repr(_fail(call, server)) == "HeadwaiterError('INTERNAL: the server has a fault', request_id='r-1')"


def test_an_error_has_the_place_and_the_limit(call: Call, server: FakeServer) -> None:
    where = {"sequence": "3", "field": "texts.values", "limit": "256", "actual": "-5"}
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "sequence 3 is too long", _info("SEQUENCE_TOO_LONG", **where))
    error = _fail(call, server)
    assert isinstance(error, SequenceTooLong)
    assert isinstance(error, InvalidInput)
    assert (error.sequence, error.field, error.limit, error.actual) == (3, "texts.values", 256, -5)


def test_a_message_above_the_servers_limit_is_too_large_and_is_not_sent(call: Call, server: FakeServer) -> None:
    with pytest.raises(MessageTooLarge) as caught:
        call(server, "encode_tokens", [range(2_000_000)])
    assert (caught.value.sequence, caught.value.limit) == (0, 4 << 20)
    assert caught.value.actual == pytest.approx(8_000_000, abs=200)
    assert not any(isinstance(request, pb.EncodeRequest) for request in server.requests)


def test_a_list_that_exceeds_a_limit_that_shrank_is_sent_in_halves(server: FakeServer) -> None:
    sequences = [range(300_000)] * 5  # 1.2 MB each.
    server.description.limits.max_tokens = 1 << 24
    server.description.limits.max_message_bytes = 64 << 20
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        client.encode_tokens([[1]] * 33)  # The client now knows the larger limit.
        server.description.limits.max_message_bytes = 4 << 20
        assert client.encode_tokens(sequences).lengths.tolist() == [300_000] * 5
        with pytest.raises(MessageTooLarge):
            client.encode_tokens([range(2_000_000)])
        server.description.limits.max_message_bytes = 64 << 20
        # The fake server itself has not changed, so gRPC refuses what the description allows.
        with pytest.raises(Overloaded):
            client.encode_tokens([range(2_000_000)])


def test_a_refusal_stays_as_it_is_if_the_limits_cannot_be_fetched() -> None:
    fake = FakeEncoder()
    refusal = Overloaded("rate limit exceeded")
    fake.errors.extend([refusal, Unavailable("gone")])
    with pytest.raises(Overloaded) as caught:
        Client(transport=fake).encode(["a"])
    assert caught.value is refusal


@pytest.mark.parametrize("method", ["encode", "attend"])
def test_a_proxys_rate_limit_is_overload_and_the_request_is_never_split(
    call: Call, server: FakeServer, method: str
) -> None:
    texts = ["one", "two", "three"]
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit exceeded")
    retry = RetryPolicy(max_attempts=3, initial_backoff_s=0.001, max_backoff_s=0.001)
    server.refusals_left = 3  # The client may then ask for the server's limits.
    with pytest.raises(Overloaded, match="rate limit exceeded") as caught:
        call(server, method, texts if method == "encode" else "one", connect={"retry": retry})
    assert (caught.value.sequence, caught.value.limit, caught.value.actual) == (None, None, None)
    sent = [request for request in server.requests if not isinstance(request, pb.GetModelRequest)]
    assert [len(request.texts.values) for request in sent] == [3 if method == "encode" else 1] * 3  # type: ignore[attr-defined]
    server.refusals_left = 2
    call(server, method, texts if method == "encode" else "one", connect={"retry": retry})


def test_the_request_id_is_the_one_in_the_servers_log(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAUTHENTICATED, "no", error_details_pb2.RequestInfo(request_id="server-made"))
    assert _fail(call, server).request_id == "server-made"


@pytest.mark.parametrize(
    "trailer",
    [
        pytest.param(b"\x08\x03\x12\x05other", id="another code and message than those of the call"),
        pytest.param(b"\xff\xff", id="not a message"),
        pytest.param(None, id="no details"),
    ],
)
def test_the_code_decides_if_the_details_are_unusable(call: Call, server: FakeServer, trailer: bytes | None) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "draining")
    assert server.refusal is not None
    trailers = () if trailer is None else (("grpc-status-details-bin", trailer),)
    server.refusal = server.refusal._replace(trailing_metadata=trailers)  # type: ignore[attr-defined]
    error = _fail(call, server)
    assert (type(error), error.request_id) == (Unavailable, "r-1")
    assert "(UNAVAILABLE: draining)" in str(error)


@pytest.mark.parametrize("details", [(), (_info("UNAVAILABLE"),)])
def test_a_status_without_a_message_shows_its_code(
    call: Call, server: FakeServer, details: tuple[Message, ...]
) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "", *details)
    assert "UNAVAILABLE" in str(_fail(call, server))


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("method", ["encode", "models", "model"])
def test_a_reply_that_does_not_parse_is_an_error(call: Call, method: str) -> None:
    garble: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: b"\xff"
    )
    methods = dict.fromkeys(("Encode", "ListModels", "GetModel"), garble)
    server = grpc.server(
        futures.ThreadPoolExecutor(1), [grpc.method_handlers_generic_handler("headwaiter.v1.Encoder", methods)]
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with pytest.raises(HeadwaiterError, match=r"^INTERNAL: ") as caught:
        call(SimpleNamespace(address=address), method, *([["a"]] if method == "encode" else []))
    assert type(caught.value) is HeadwaiterError
    server.stop(0).wait()


@pytest.mark.parametrize("method", ["encode", "models", "model", "is_serving"])
async def test_a_closed_client_cancels_calls(client_class: Any, server: FakeServer, method: str) -> None:
    async with open_client(client_class, server.address) as client:
        await client.close()
        with pytest.raises(Cancelled, match="the client is closed"):
            await getattr(client, method)(*([["a"]] if method == "encode" else []))


def test_the_name_of_a_model_must_be_unicode(call: Call, server: FakeServer) -> None:
    with pytest.raises(InvalidInput, match="Unicode") as caught:
        call(server, "model", "\ud800")
    assert caught.value.field == "name"
    assert server.requests == []
