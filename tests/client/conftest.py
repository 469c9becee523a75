"""Fixtures: a fake server, and functions that make the same call with either client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headwaiter_client import AsyncClient, Client, RetryPolicy
from tests.support.client.client_runner import ClientRunner
from tests.support.client.fake_server import Call, FakeServer


@pytest.fixture
def server(starts_processes: None) -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """Make a call with each client; a failed call is not sent again, unless the test sets a retry policy."""

    def call_once(
        server: FakeServer, method: str, *arguments: object, connect: dict[str, Any] | None = None, **options: object
    ) -> Any:
        client_arguments = {"retry": RetryPolicy(max_attempts=1), **(connect or {})}

        async def call_async() -> Any:
            async with AsyncClient(server.address, **client_arguments) as client:
                return await getattr(client, method)(*arguments, **options)

        if request.param is AsyncClient:
            return asyncio.run(call_async())
        with Client(server.address, **client_arguments) as client:
            return getattr(client, method)(*arguments, **options)

    return call_once


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> ClientRunner:
    """Make calls with each client, without a network."""
    return ClientRunner(request.param)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams wait for full requests, however slow the machine is."""
    monkeypatch.setattr("headwaiter_client.calls.stream_queue._MAX_WAIT_S", 60.0)
