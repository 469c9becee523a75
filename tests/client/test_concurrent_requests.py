"""The requests of one list or stream that are in flight at once: their number and their cancellation."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from headwaiter_client import AsyncClient, Cancelled, Client, InvalidInput
from headwaiter_client.calls.steps import METHODS
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import DOMAIN
from tests.support.client.blocking_encoders import AsyncBlockingEncoder, BlockingEncoder, ConcurrencyCounter
from tests.support.client.client_runner import TEXTS
from tests.support.client.fake_server import FakeServer, encode_response


def test_a_failed_list_does_not_wait_for_its_other_requests() -> None:
    encoder = BlockingEncoder()
    with Client(transport=encoder) as client:
        with pytest.raises(InvalidInput) as caught:
            client.encode(["long " * 10_000, *TEXTS], request_id="r")
        encoder.release.set()
    assert caught.value.sequence == 0


async def test_a_failed_async_list_cancels_its_other_requests() -> None:
    encoder = AsyncBlockingEncoder()
    async with AsyncClient(transport=encoder) as client:
        with pytest.raises(InvalidInput) as caught:
            await client.encode(["long " * 10_000, *TEXTS], request_id="r")
    assert caught.value.sequence == 0
    assert encoder.cancelled == ["r.256", "r.512"]


async def test_cancelling_a_task_cancels_all_requests_of_its_list() -> None:
    encoder = AsyncBlockingEncoder()
    async with AsyncClient(transport=encoder) as client:
        task = asyncio.create_task(client.encode(TEXTS, request_id="s"))
        await encoder.three_in_flight.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(encoder.cancelled) == ["s", "s.256", "s.512"]


def test_the_requests_in_flight_never_exceed_max_in_flight() -> None:
    encoder = ConcurrencyCounter(threading.Barrier(3))
    with Client(transport=encoder, max_in_flight=3) as client:
        client.encode(TEXTS * 2 + TEXTS[:200])
    assert encoder.max_in_flight == 3


async def test_the_async_requests_in_flight_never_exceed_max_in_flight() -> None:
    encoder = AsyncBlockingEncoder(release_after=6)
    async with AsyncClient(transport=encoder, max_in_flight=3) as client:
        await client.encode(TEXTS * 2 + TEXTS[:300])
    assert encoder.max_in_flight == 3


class _SecondRequestBlocks(FakeServer):
    """Holds back every request except "r", and answers "r" once another request is held back."""

    def __init__(self) -> None:
        super().__init__()
        self.second_arrived, self.second_ended = threading.Event(), threading.Event()

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:  # noqa: N802
        if request.request_id != "r":
            self.released.clear()
            context.add_callback(self.second_ended.set)
            self.second_arrived.set()
            self.released.wait()
        assert self.second_arrived.wait(30)
        return encode_response(request)


@pytest.fixture
def blocking_server(starts_processes: None) -> Iterator[_SecondRequestBlocks]:
    fake = _SecondRequestBlocks()
    yield fake
    fake.stop()


def test_closing_a_stream_cancels_its_requests_on_the_server(blocking_server: _SecondRequestBlocks) -> None:
    with Client(blocking_server.address) as client:
        stream = client.encode_stream(TEXTS[:300], request_id="r")
        assert next(stream).index == 0
        stream.close()
        assert blocking_server.second_ended.wait(30)


def test_cancelling_a_scope_cancels_its_calls_in_flight() -> None:
    scope = CancelScope()

    class CallInFlight:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    call, ended = CallInFlight(), CallInFlight()
    with scope.holding(ended):
        pass
    with scope.holding(call):
        scope.cancel()
    late = CallInFlight()
    with scope.holding(late):
        pass
    assert (call.cancelled, ended.cancelled, late.cancelled) == (True, False, True)


def test_a_cancelled_scope_sends_no_request(server: FakeServer) -> None:
    scope = CancelScope()
    scope.cancel()
    with Client(server.address) as client, pytest.raises(Cancelled) as caught:
        client._transport.unary(METHODS["Encode"], b"", 30.0, "r", scope)
    assert caught.value.request_id == "r"
    assert server.requests == []


def _refuse_for_long(server: FakeServer) -> None:
    server.refuse(
        grpc.StatusCode.UNAVAILABLE,
        "the server is starting",
        error_details_pb2.ErrorInfo(reason="UNAVAILABLE", domain=DOMAIN),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=20)),
    )


def test_closing_a_client_ends_the_pauses_before_retries(server: FakeServer) -> None:
    with ThreadPoolExecutor(1) as pool, Client(server.address, max_in_flight=2) as client:
        client.encode(TEXTS)
        _refuse_for_long(server)
        count = len(server.requests)
        failed = pool.submit(client.encode, TEXTS)
        while len(server.requests) < count + 2:
            time.sleep(0.01)
        begin_s = time.monotonic()
        client.close()
        with pytest.raises(Cancelled, match="closed"):
            failed.result(30)
        assert time.monotonic() - begin_s < 1
