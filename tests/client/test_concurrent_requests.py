"""The requests of one list or stream that are in flight at once: their number and their cancellation."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headwaiter_client import AsyncClient, Cancelled, Client, InvalidInput
from headwaiter_client.calls.steps import METHODS
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.blocking_encoder import BlockingEncoder
from tests.support.client.both_clients import InThreads, open_client, wait_until
from tests.support.client.client_runner import TEXTS
from tests.support.client.fake_server import FakeServer, encode_response


async def test_a_failed_list_waits_for_no_other_requests_and_an_async_one_cancels_them(client_class: Any) -> None:
    encoder = BlockingEncoder()
    transport = InThreads(encoder)
    async with open_client(client_class, transport) as client:
        with pytest.raises(InvalidInput) as caught:
            await client.encode(["long " * 10_000, *TEXTS], request_id="r")
        encoder.release.set()
    assert caught.value.sequence == 0
    assert transport.cancelled == (["r.256", "r.512"] if client_class is AsyncClient else [])


async def test_cancelling_a_task_cancels_all_requests_of_its_list() -> None:
    encoder = BlockingEncoder()
    transport = InThreads(encoder)
    async with AsyncClient(transport=transport) as client:
        task = asyncio.create_task(client.encode(TEXTS, request_id="s"))
        await wait_until(lambda: len(encoder.held) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    encoder.release.set()
    assert sorted(transport.cancelled) == ["s", "s.256", "s.512"]


async def test_the_requests_in_flight_never_exceed_max_in_flight(client_class: Any) -> None:
    encoder = BlockingEncoder()
    async with open_client(client_class, InThreads(encoder), max_in_flight=3) as client:
        call = asyncio.ensure_future(client.encode(TEXTS * 2, request_id="s"))
        await wait_until(lambda: len(encoder.held) >= 3)
        await asyncio.sleep(0.1)  # Time for one request too many.
        in_flight = len(encoder.held)
        encoder.release.set()
        assert len((await call).lengths) == 1200
    assert in_flight == 3


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
