"""The requests of one list that are on their way at once: how many, and what ends them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import cast

import grpc
import pytest

from headwaiter_client import AsyncClient, Cancelled, Client, InvalidInput
from headwaiter_client.calls.steps import METHODS
from headwaiter_client.transport.grpc_transport import Flight
from headwaiter_proto import encoder_pb2 as pb
from tests.client.drive import TEXTS
from tests.client.fake_server import FakeServer, answer
from tests.client.gates import AsyncGate, Crowd, Gate


def test_a_list_that_failed_does_not_wait_for_its_other_requests() -> None:
    gate = Gate()
    with Client(transport=gate) as client:
        with pytest.raises(InvalidInput, match="sequence 0"):
            client.encode(["", *TEXTS], request_id="r")
        gate.opened.set()


async def test_an_async_list_that_failed_cancels_its_other_requests() -> None:
    gate = AsyncGate()
    async with AsyncClient(transport=gate) as client:
        with pytest.raises(InvalidInput, match="sequence 0"):
            await client.encode(["", *TEXTS], request_id="r")
    assert gate.cancelled == ["r.256", "r.512"]


async def test_cancelling_a_task_cancels_all_requests_of_its_list() -> None:
    gate = AsyncGate()
    async with AsyncClient(transport=gate) as client:
        task = asyncio.create_task(client.encode(TEXTS, request_id="s"))
        await gate.three.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(gate.cancelled) == ["s", "s.256", "s.512"]


def test_no_more_requests_are_on_their_way_than_said() -> None:
    crowd = Crowd(threading.Barrier(3))
    with Client(transport=crowd, max_in_flight=3) as client:
        client.encode(TEXTS * 2 + TEXTS[:200])
    assert crowd.most == 3


async def test_no_more_async_requests_are_on_their_way_than_said() -> None:
    gate = AsyncGate(others=6)
    async with AsyncClient(transport=gate, max_in_flight=3) as client:
        await client.encode(TEXTS * 2 + TEXTS[:300])
    assert gate.most == 3


class _HoldsTheSecond(FakeServer):
    """Answers the request "r" when another has come, and holds that back."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.gone = threading.Event(), threading.Event()

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:  # noqa: N802
        if request.request_id != "r":
            self.released.clear()
            context.add_callback(self.gone.set)
            self.held.set()
            self.released.wait()
        assert self.held.wait(30)
        return answer(request)


@pytest.fixture
def holding() -> Iterator[_HoldsTheSecond]:
    fake = _HoldsTheSecond()
    yield fake
    fake.stop()


def test_closing_a_stream_cancels_its_requests_on_the_server(holding: _HoldsTheSecond) -> None:
    with Client(holding.address) as client:
        stream = client.encode_stream(TEXTS[:300], request_id="r")
        assert next(stream).index == 0
        stream.close()
        assert holding.gone.wait(30)


def test_a_flight_cancels_the_calls_that_are_waited_for() -> None:
    flight = Flight()

    class Waited:
        """Is cancelled while it is waited for."""

        cancelled = False

        def result(self) -> bytes:
            flight.cancel()
            return b"late"

        def cancel(self) -> None:
            self.cancelled = True

    call = Waited()
    assert flight.result(cast("grpc.Future[bytes]", call)) == b"late"
    assert call.cancelled


def test_a_request_that_comes_after_its_stream_was_closed_is_cancelled_too(server: FakeServer) -> None:
    flight = Flight()
    flight.cancel()
    with Client(server.address) as client, pytest.raises(Cancelled, match="cancelled with others") as caught:
        client._transport.unary(METHODS["Encode"], b"", 30.0, "r", flight)
    assert caught.value.request_id == "r"
