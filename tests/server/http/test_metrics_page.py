"""The metrics page serves a registry over HTTP until it is stopped."""

import asyncio
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
