"""The public pages serve metrics and health over HTTP until the server is stopped."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette

from headwaiter_server.http.pages import public_routes
from headwaiter_server.http.server import HttpServer, listen
from headwaiter_server.settings.flags import Settings

HOST = "127.0.0.1"


@contextmanager
def pages(registry: CollectorRegistry, *, ready: bool = True, port: int = 0) -> Iterator[HttpServer]:
    async def write_metrics(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    application = Starlette(routes=public_routes(write_metrics, lambda: ready))
    server = HttpServer(listen(HOST, port), application, Settings(bundle=Path("bundle")))
    server.start()
    try:
        yield server
    finally:
        asyncio.run(server.stop(1.0))


def test_the_metrics_are_served_until_the_server_is_stopped() -> None:
    registry = CollectorRegistry()
    Gauge("answer", "Some text.", registry=registry).set(42)
    with pages(registry) as server:
        url = f"http://{HOST}:{server.port}/metrics"
        with urlopen(url) as response:
            assert "answer 42.0" in response.read().decode().splitlines()
            assert response.headers["content-type"].startswith("text/plain")
    with pytest.raises(URLError):
        urlopen(url)


def status_of(url: str) -> int:
    try:
        with urlopen(url) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
def test_health_says_whether_the_server_is_ready(ready: bool, status: int) -> None:
    with pages(CollectorRegistry(), ready=ready) as server:
        assert status_of(f"http://{HOST}:{server.port}/health/live") == 200
        assert status_of(f"http://{HOST}:{server.port}/health/ready") == status


def test_a_port_in_use_is_an_error_and_free_again_after_a_stop() -> None:
    with pages(CollectorRegistry()) as first:
        port = first.port
        with pytest.raises(OSError), pages(CollectorRegistry(), port=port):  # noqa: PT011 - the system's message
            pass
    with pages(CollectorRegistry(), port=port) as second:
        assert second.port == port


def test_idle_connections_do_not_stop_the_metrics() -> None:
    with pages(CollectorRegistry()) as server:
        idle = [socket.create_connection((HOST, server.port)) for _ in range(50)]
        with urlopen(f"http://{HOST}:{server.port}/metrics", timeout=5) as response:
            assert response.status == 200
        for connection in idle:
            connection.close()
