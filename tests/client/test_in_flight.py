"""The requests of one list that are on their way at once: how many, and what ends them."""

import asyncio
import threading

import pytest

from headwaiter_client import AsyncClient, Client, InvalidInput
from tests.client.drive import TEXTS
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
