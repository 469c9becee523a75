"""An AsyncClient belongs to the event loop of its first call."""

import asyncio

import pytest

from headwaiter_client import AsyncClient, Cancelled, HeadwaiterError
from tests.support.client.fake_server import FakeServer


def _addresses(server: FakeServer, in_a_list: bool) -> str | list[str]:
    return [server.address] if in_a_list else server.address


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_client_made_outside_an_event_loop_works_inside_one(server: FakeServer, in_a_list: bool) -> None:
    client = AsyncClient(_addresses(server, in_a_list))

    async def call() -> list[int]:
        async with client:
            lengths: list[int] = (await client.encode(["a"])).lengths.tolist()
            return lengths

    assert asyncio.run(call()) == [3]


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_call_in_a_second_event_loop_says_what_to_do(server: FakeServer, in_a_list: bool) -> None:
    client = AsyncClient(_addresses(server, in_a_list))

    async def call() -> None:
        await client.encode(["a"])

    asyncio.run(call())
    with pytest.raises(HeadwaiterError, match="make an AsyncClient in each event loop") as wrong:
        asyncio.run(call())
    assert type(wrong.value) is HeadwaiterError
    asyncio.run(client.close())


def test_a_client_can_be_closed_without_a_call() -> None:
    async def close() -> None:
        client = AsyncClient(["localhost:1"])
        await client.close()
        with pytest.raises(Cancelled):
            await client.encode(["a"])

    asyncio.run(close())
