"""The metrics page serves a registry over HTTP until it is stopped."""

import asyncio
import logging
import socket
import struct
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from headwaiter_server.http.metrics_page import MetricsPage

HOST = "127.0.0.1"


def test_a_metrics_page_serves_the_registry_until_it_is_stopped() -> None:
    registry = CollectorRegistry()
    Gauge("answer", "Some text.", registry=registry).set(42)
    page = MetricsPage(HOST, 0, registry)
    url = f"http://{HOST}:{page.port}/metrics"
    with urlopen(url) as response:
        assert "answer 42.0" in response.read().decode().splitlines()
    asyncio.run(page.stop())
    with pytest.raises(URLError):
        urlopen(url)


def test_a_port_in_use_is_an_error_and_free_again_after_a_stop() -> None:
    first = MetricsPage(HOST, 0, CollectorRegistry())
    with pytest.raises(OSError):  # noqa: PT011 - the message is the operating system's
        MetricsPage(HOST, first.port, CollectorRegistry())
    asyncio.run(first.stop())
    second = MetricsPage(HOST, first.port, CollectorRegistry())
    assert second.port == first.port
    asyncio.run(second.stop())


def test_a_caller_that_breaks_off_writes_one_line(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    page = MetricsPage("127.0.0.1", 0, CollectorRegistry())
    with socket.create_connection(("127.0.0.1", page.port)) as caller:
        caller.sendall(b"GET /metrics HTTP/1.1\r\n")
        time.sleep(0.1)
        # Closing sends a reset.
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end_s = time.monotonic() + 10
    while not caplog.messages and not capfd.readouterr().err and time.monotonic() < end_s:
        time.sleep(0.01)
    asyncio.run(page.stop())
    assert len(caplog.messages) == 1
