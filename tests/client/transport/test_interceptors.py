"""gRPC's interceptors see and change the calls of both clients, and channel options replace the client's own."""

import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from headwaiter_client import AsyncClient, Client, HeadwaiterError
from headwaiter_client.calls.steps import HEALTH_METHOD, METHODS
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.both_clients import open_client
from tests.support.client.client_runner import TEXTS
from tests.support.client.fake_server import Call, FakeServer


class _AddKey(grpc.UnaryUnaryClientInterceptor, grpc.aio.UnaryUnaryClientInterceptor):
    """Adds metadata, as a tracing library does, and notes the methods."""

    def __init__(self, value: str = "7") -> None:
        self.methods: list[str] = []
        self._value = value

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        self.methods.append(method)
        metadata = grpc.aio.Metadata(*(details.metadata or ()), ("x-trace", self._value))
        return continuation(details._replace(metadata=metadata), request)


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "replicas"])
def test_an_interceptor_sees_each_call_and_changes_its_metadata(
    call: Call, server: FakeServer, in_a_list: bool
) -> None:
    interceptor = _AddKey()
    address = SimpleNamespace(address=[server.address, server.address] if in_a_list else server.address)
    result = call(address, "encode", TEXTS, connect={"interceptors": [interceptor], "metadata": {"x-tenant": "a"}})
    assert len(result.lengths) == len(TEXTS)
    assert (server.metadata["x-trace"], server.metadata["x-tenant"]) == ("7", "a")
    # The call takes one question for the limits and three requests.
    assert interceptor.methods.count(METHODS["Encode"]) == 3
    assert (HEALTH_METHOD in interceptor.methods) is in_a_list


def test_interceptors_are_called_in_order(call: Call, server: FakeServer) -> None:
    call(server, "encode", ["a"], connect={"interceptors": [_AddKey("first"), _AddKey("second")]})
    # The dict keeps the last of several values.
    assert server.metadata["x-trace"] == "second"


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "replicas"])
def test_a_library_that_replaces_grpcs_functions_for_channels_sees_each_call(
    server: FakeServer, in_a_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`GrpcInstrumentorClient().instrument()` of OpenTelemetry does this."""
    interceptor, insecure_channel = _AddKey(), grpc.insecure_channel
    monkeypatch.setattr(
        grpc, "insecure_channel", lambda *options: grpc.intercept_channel(insecure_channel(*options), interceptor)
    )
    with Client([server.address] if in_a_list else server.address) as client:
        client.encode(TEXTS)
        list(client.encode_stream(["a"]))
    assert server.metadata["x-trace"] == "7"
    assert interceptor.methods.count(METHODS["Encode"]) == 4


class _OfReplyStreams(grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream: Any = None


class _OfRequestStreams(grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary: Any = None


class _OfBothStreams(grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream: Any = None


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "replicas"])
async def test_interceptors_of_other_kinds_of_calls_may_be_among_the_interceptors(
    server: FakeServer, in_a_list: bool
) -> None:
    """`aio_client_interceptors()` of OpenTelemetry returns one interceptor of each kind."""
    interceptor = _AddKey()
    interceptors = [interceptor, _OfReplyStreams(), _OfRequestStreams(), _OfBothStreams()]
    async with AsyncClient([server.address] if in_a_list else server.address, interceptors=interceptors) as client:
        await client.encode(TEXTS)
    assert server.metadata["x-trace"] == "7"
    assert interceptor.methods.count(METHODS["Encode"]) == 3


def test_an_error_passes_through_an_interceptor(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(HeadwaiterError, match="INVALID_ARGUMENT: no"):
        call(server, "encode", ["a"], connect={"interceptors": [_AddKey()]})


class _Wrong(grpc.UnaryUnaryClientInterceptor):
    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        raise ValueError("the interceptor is wrong")


class _AsyncWrong(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        raise ValueError("the interceptor is wrong")


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "replicas"])
async def test_the_error_of_an_interceptor_reaches_the_caller(
    client_class: Any, server: FakeServer, in_a_list: bool
) -> None:
    address = [server.address, server.address] if in_a_list else server.address
    wrong = _Wrong() if client_class is Client else _AsyncWrong()
    async with open_client(client_class, address, interceptors=[wrong], timeout_s=3) as client:
        for _ in range(2):
            with pytest.raises(ValueError, match="the interceptor is wrong"):
                await client.encode_tokens([[1]])


async def test_a_failed_call_moves_to_another_replica_through_an_interceptor(
    client_class: Any, server: FakeServer
) -> None:
    gone = FakeServer()
    async with open_client(client_class, [server.address, gone.address], interceptors=[_AddKey()]) as client:
        while not (server.requests and gone.requests):
            await client.encode_tokens([[1]])
        gone.stop()
        for _ in range(6):
            assert (await client.encode_tokens([[1]])).lengths.tolist() == [1]


class _WaitForReply(grpc.UnaryUnaryClientInterceptor):
    """Waits for the reply of a call, as an interceptor that logs status codes may do."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        call.code()
        return call


class _HoldsAllButTheFirst(FakeServer):
    """Answers the request that has the first text, and holds all others."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[pb.EncodeRequest] = []
        self.ended = threading.Event()

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:  # noqa: N802
        if "text 0" not in request.texts.values:
            self.held.append(request)
            self.ended.wait()
        return super().Encode(request, context)


@pytest.mark.usefixtures("starts_processes")
def test_an_interceptor_that_waits_holds_up_no_other_request_and_no_close() -> None:
    server = _HoldsAllButTheFirst()
    with Client(server.address, interceptors=[_WaitForReply()], timeout_s=20) as client:
        results = client.encode_stream(f"text {number}" for number in itertools.count())
        next(results)
        for _ in range(1000):
            if len(server.held) >= 2:  # Requests are in flight at the same time.
                break
            time.sleep(0.01)
        else:
            pytest.fail("one request waits for another")
        before_s = time.monotonic()
        results.close()
        assert time.monotonic() - before_s < 5
        server.ended.set()
    server.stop()


def test_no_call_waits_for_a_health_check_behind_an_interceptor_that_waits(server: FakeServer) -> None:
    gone = FakeServer()
    replicas = [server.address, gone.address]
    with Client(replicas, interceptors=[_WaitForReply()], timeout_s=20) as client:
        while not (server.requests and gone.requests):
            client.encode(["a"])
        gone.stop()
        durations_s = []
        for _ in range(20):
            before_s = time.monotonic()
            client.encode(["a"])
            durations_s.append(time.monotonic() - before_s)
    assert max(durations_s) < 1  # A health check of a server that is gone takes 2 s.


def test_a_channel_option_replaces_the_clients_own(call: Call, server: FakeServer) -> None:
    small = {"channel_options": [("grpc.max_receive_message_length", 8)]}
    with pytest.raises(HeadwaiterError, match="larger than max"):
        call(server, "encode", ["a"], connect=small)
    assert call(server, "encode", ["a"])
