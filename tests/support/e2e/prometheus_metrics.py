"""Reads a server's metrics over HTTP, as Prometheus does."""

import asyncio
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def metrics_page(url: str) -> str:
    """Return the text of a server's metrics page."""
    with urlopen(url, timeout=10) as reply:
        text: str = reply.read().decode()
    return text


async def read_metric(url: str, name: str, **labels: str) -> float:
    """Return what `metric_value` returns; the event loop goes on, which may run a front end of the server."""
    return await asyncio.to_thread(metric_value, url, name, **labels)


def metric_value(url: str, name: str, **labels: str) -> float:
    """Return the sum of the metric's samples that have these labels, or 0 if there are no samples."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics_page(url))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
