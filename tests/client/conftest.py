"""Fixtures: a fake server, and functions that make the same call with either client."""

from collections.abc import Iterator

import pytest

from headwaiter_client import AsyncClient, Client
from tests.support.client.client_runner import ClientRunner
from tests.support.client.fake_server import Call, FakeServer


@pytest.fixture
def server(starts_processes: None) -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def client_class(request: pytest.FixtureRequest) -> type[Client] | type[AsyncClient]:
    client_class: type[Client] | type[AsyncClient] = request.param
    return client_class


@pytest.fixture
def runner(client_class: type[Client] | type[AsyncClient]) -> ClientRunner:
    """Make calls with each client."""
    return ClientRunner(client_class)


@pytest.fixture
def call(runner: ClientRunner) -> Call:
    """Make a call with each client: `runner.call`."""
    return runner.call


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams wait for full requests, however slow the machine is."""
    monkeypatch.setattr("headwaiter_client.calls.stream_queue._MAX_WAIT_S", 60.0)
