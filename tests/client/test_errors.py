"""Every way in which a call fails has a class of its own, whichever client makes the call."""

import pickle
from concurrent import futures
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2

import headwaiter_client
from headwaiter_client import (
    AsyncClient,
    Cancelled,
    Client,
    HeadwaiterError,
    InvalidInput,
    MessageTooLarge,
    Overloaded,
    SequenceTooLong,
    errors,
)
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import Call, FakeServer

_CODES = {
    "INVALID_INPUT": "INVALID_ARGUMENT",
    "SEQUENCE_TOO_LONG": "INVALID_ARGUMENT",
    "MODEL_NOT_FOUND": "NOT_FOUND",
    "OVERLOADED": "RESOURCE_EXHAUSTED",
    "MESSAGE_TOO_LARGE": "RESOURCE_EXHAUSTED",
    "INFERENCE_FAILED": "INTERNAL",
}
_REASONS = [name for name in pb.ErrorReason.keys() if name != "ERROR_REASON_UNSPECIFIED"]  # noqa: SIM118 (no dict)
_CLASSES = {
    "INVALID_ARGUMENT": "InvalidInput",
    "NOT_FOUND": "ModelNotFound",
    "RESOURCE_EXHAUSTED": "MessageTooLarge",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
    "CANCELLED": "Unavailable",
    "UNAVAILABLE": "Unavailable",
    "UNAUTHENTICATED": "Unauthenticated",
    "UNIMPLEMENTED": "Unimplemented",
}


def _info(reason: str, **metadata: str) -> Message:
    info: Message = error_details_pb2.ErrorInfo(reason=reason, domain="headwaiter", metadata=metadata)
    return info


def _retry(seconds: float) -> Message:
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    retry: Message = error_details_pb2.RetryInfo(retry_delay=delay)
    return retry


def _fail(call: Call, server: FakeServer) -> HeadwaiterError:
    with pytest.raises(HeadwaiterError) as caught:
        call(server, "encode", ["a text"], request_id="r-1")
    return caught.value


def test_there_is_a_class_for_each_reason_of_the_contract() -> None:
    names = {"".join(word.title() for word in reason.split("_")) for reason in _REASONS}
    assert names == {kind.__name__ for kind in errors.ERROR_BY_REASON.values()}
    assert set(errors.ERROR_BY_REASON) == set(_REASONS)
    assert names < set(headwaiter_client.__all__)


@pytest.mark.parametrize("reason", _REASONS)
def test_the_servers_reason_decides_the_class(call: Call, server: FakeServer, reason: str) -> None:
    server.refuse(grpc.StatusCode[_CODES.get(reason, reason)], "what was wrong", _info(reason))
    error = _fail(call, server)
    assert type(error).__name__ == "".join(word.title() for word in reason.split("_"))
    # What is too large has one sequence here, which is then to blame.
    too_large = reason == "MESSAGE_TOO_LARGE"
    assert str(error).partition("by itself: ")[2 * too_large].partition(";")[0] == "what was wrong"
    assert error.request_id == "r-1"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_without_a_reason_the_code_decides_and_names_itself_where_we_have_no_class(
    call: Call, server: FakeServer, code: grpc.StatusCode
) -> None:
    server.refuse(code, "what was wrong")
    error = _fail(call, server)
    assert type(error).__name__ == _CLASSES.get(code.name, "HeadwaiterError")
    if type(error) is HeadwaiterError:
        assert str(error) == f"{code.name}: what was wrong"


def test_a_fault_of_the_server_is_not_taken_for_one_of_the_model(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.INTERNAL, "the server has a fault", _info("ERROR_REASON_UNSPECIFIED"))
    assert repr(_fail(call, server)) == "HeadwaiterError('INTERNAL: the server has a fault', request_id='r-1')"


def test_an_error_says_where_the_fault_is_and_what_the_limit_was(call: Call, server: FakeServer) -> None:
    where = {"sequence": "3", "field": "texts.values", "limit": "256", "actual": "300"}
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "sequence 3 is too long", _info("SEQUENCE_TOO_LONG", **where))
    error = _fail(call, server)
    assert isinstance(error, SequenceTooLong)
    assert isinstance(error, InvalidInput)
    assert (error.sequence, error.field, error.limit, error.actual) == (3, "texts.values", 256, 300)


def test_negative_and_unreadable_figures_do_no_harm(call: Call, server: FakeServer) -> None:
    where = {"sequence": "", "limit": "many", "actual": "-5"}
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "wrong", _info("INVALID_INPUT", **where))
    error = _fail(call, server)
    assert (error.sequence, error.limit, error.actual) == (None, None, -5)


def test_overload_says_when_to_try_again(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", _info("OVERLOADED"), _retry(0.25))
    error = _fail(call, server)
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 0.25


def test_a_refusal_with_a_delay_but_no_reason_is_overload(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", _retry(2))
    assert isinstance(_fail(call, server), Overloaded)


def test_a_message_that_grpc_itself_refuses_is_too_large(call: Call, server: FakeServer) -> None:
    with pytest.raises(MessageTooLarge, match="larger than max"):
        call(server, "encode_tokens", [range(2_000_000)])


def test_the_id_in_the_servers_log_is_the_one_the_error_names(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAUTHENTICATED, "no", error_details_pb2.RequestInfo(request_id="server-made"))
    assert _fail(call, server).request_id == "server-made"


@pytest.mark.parametrize(
    "trailer",
    [
        pytest.param(b"\x08\x03\x12\x05other", id="another code and message than the call ended with"),
        pytest.param(b"\xff\xff", id="no message at all"),
        pytest.param(None, id="none"),
    ],
)
def test_details_that_cannot_be_trusted_leave_the_code_to_decide(
    call: Call, server: FakeServer, trailer: bytes | None
) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "draining")
    assert server.refusal is not None
    trailers = () if trailer is None else (("grpc-status-details-bin", trailer),)
    server.refusal = server.refusal._replace(trailing_metadata=trailers)  # type: ignore[attr-defined]
    assert repr(_fail(call, server)) == "Unavailable('draining', request_id='r-1')"


def test_a_status_without_words_shows_its_code(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "")
    assert str(_fail(call, server)) == "UNAVAILABLE"


def test_what_the_client_itself_refuses_is_invalid_input_too(call: Call, server: FakeServer) -> None:
    with pytest.raises(InvalidInput, match="pass a list of texts"):
        call(server, "encode", "a text")
    assert server.requests == []


@pytest.mark.parametrize("method", ["encode", "models", "model"])
def test_a_reply_that_is_no_message_of_the_contract_is_an_error(call: Call, method: str) -> None:
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
def test_a_closed_client_says_so(server: FakeServer, method: str) -> None:
    client = Client(server.address)
    client.close()
    with pytest.raises(Cancelled, match=r"^the client is closed$"):
        getattr(client, method)(*([["a"]] if method == "encode" else []))


@pytest.mark.parametrize("method", ["encode", "models", "model", "is_serving"])
async def test_a_closed_async_client_says_so(server: FakeServer, method: str) -> None:
    client = AsyncClient(server.address)
    await client.close()
    with pytest.raises(Cancelled, match=r"^the client is closed$"):
        await getattr(client, method)(*([["a"]] if method == "encode" else []))


def test_a_model_is_asked_for_by_a_name(call: Call, server: FakeServer) -> None:
    with pytest.raises(InvalidInput, match=r"^name is not Unicode text") as caught:
        call(server, "model", "\ud800")
    assert caught.value.field == "name"
    assert server.requests == []


@pytest.mark.parametrize("kind", [HeadwaiterError, *errors.ERROR_BY_REASON.values()])
def test_errors_survive_pickling(kind: type[HeadwaiterError]) -> None:
    error = kind("too long", sequence=0, field="texts", limit=5, actual=6, retry_after_s=0.5, request_id="r")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == ("too long", vars(error))


def test_an_error_shows_what_it_knows() -> None:
    assert repr(SequenceTooLong("too long", sequence=0, limit=5)) == "SequenceTooLong('too long', sequence=0, limit=5)"
