"""A stand-in server, and a way to make the same call with either client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headwaiter_client import AsyncClient, Client, RetryPolicy
from tests.client.drive import Drive
from tests.client.fake_server import Call, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """Makes the call once with each kind of client; what fails is not sent again, unless the test says so."""

    def call_once(
        server: FakeServer, method: str, *arguments: object, connect: dict[str, Any] | None = None, **options: object
    ) -> Any:
        settings = {"retry": RetryPolicy(max_attempts=1), **(connect or {})}

        async def call_async() -> Any:
            async with AsyncClient(server.address, **settings) as client:
                return await getattr(client, method)(*arguments, **options)

        if request.param is AsyncClient:
            return asyncio.run(call_async())
        with Client(server.address, **settings) as client:
            return getattr(client, method)(*arguments, **options)

    return call_once


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Makes calls with each kind of client, without a network."""
    return Drive(request.param)
