"""Under load with cancellations, every answer is correct, no request is lost, and memory does not grow."""

from pathlib import Path
from statistics import mean

import pytest

from headwaiter_client import AsyncClient
from testbed.server_process import running_server
from tests.support.e2e.cancelling_load import CANCELLED, REQUESTS, CancellingLoad
from tests.support.e2e.in_process_server import wait_until
from tests.support.e2e.prometheus_metrics import metric_value, read_metric
from tests.support.server_processes import memory_bytes

MEMORY_GROWTH_BYTES = 20e6


# In every run, a load meets drains, swaps and rotations, and none of its requests is lost.
@pytest.mark.exhaustive
async def test_all_uncancelled_requests_are_answered_and_the_server_ends_idle(text_bundle: Path) -> None:
    samples_bytes: list[int] = []
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        async with AsyncClient(server.address) as client:
            load = CancellingLoad(client)
            await load.encode_known_sequences()
            await load.run(lambda _: samples_bytes.append(memory_bytes(server)))
            assert load.refused == []
            assert (load.answered, load.cancelled) == (REQUESTS - CANCELLED, CANCELLED)
            # The server learns of a cancellation after the client has continued.
            await wait_until(client, lambda: metric_value(server.metrics_url, "headwaiter_inflight_requests") == 0)
            assert await read_metric(server.metrics_url, "headwaiter_queue_sequences") == 0
            assert await read_metric(server.metrics_url, "headwaiter_queue_tokens") == 0
    quarter = len(samples_bytes) // 4
    assert mean(samples_bytes[-quarter:]) - mean(samples_bytes[quarter : 2 * quarter]) < MEMORY_GROWTH_BYTES
