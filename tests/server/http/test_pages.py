"""The public pages serve metrics and health over HTTP until the server is stopped."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from starlette.applications import Starlette

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.http.pages import public_routes
from headwaiter_server.http.server import HttpServer, listen
from headwaiter_server.metrics.page import Page, write_page
from tests.support.server.asgi_caller import send_request

HOST = "127.0.0.1"


def application(registry: CollectorRegistry, *, ready: bool) -> Starlette:
    async def write_metrics(accept: str) -> Page:
        return await write_page(registry, accept)

    return Starlette(routes=public_routes(write_metrics, lambda: ready))


@contextmanager
def pages(registry: CollectorRegistry, port: int = 0) -> Iterator[HttpServer]:
    server = HttpServer(listen(HOST, port), application(registry, ready=True), None, 100, read_s=60.0)
    server.start()
    try:
        yield server
    finally:
        asyncio.run(server.stop(1.0))


@pytest.mark.usefixtures("starts_processes")
def test_metrics_are_served_beside_idle_connections_until_the_server_is_stopped() -> None:
    registry = CollectorRegistry()
    Gauge("answer", "Some text.", registry=registry).set(42)
    with pages(registry) as server:
        url = f"http://{HOST}:{server.port}/metrics"
        idle = [socket.create_connection((HOST, server.port)) for _ in range(50)]
        with urlopen(url, timeout=5) as response:
            assert "answer 42.0" in response.read().decode().splitlines()
            assert response.headers["content-type"].startswith("text/plain")
        with urlopen(f"{url}?name[]=answer&name[]=other", timeout=5) as response:
            assert response.read() == b"answer 42.0\n"
        for connection in idle:
            connection.close()
    with pytest.raises(URLError):
        urlopen(url)


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_health_says_whether_the_server_is_ready(ready: bool, status: int) -> None:
    assert (await send_request(application(CollectorRegistry(), ready=ready), "GET", "/health/live")).status == 200
    assert (await send_request(application(CollectorRegistry(), ready=ready), "GET", "/health/ready")).status == status


async def test_a_scrape_of_an_engine_that_has_ended_gets_503() -> None:
    async def engine_has_ended(_: str) -> Page:
        raise Unavailable("a process of the server has ended")

    pages_of_dead_engine = Starlette(routes=public_routes(engine_has_ended, lambda: False))
    reply = await send_request(pages_of_dead_engine, "GET", "/metrics")
    assert (reply.status, reply.body) == (503, b"a process of the server has ended\n")
