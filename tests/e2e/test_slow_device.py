"""While the device is busy, requests whose caller has gone or whose deadline has passed never run."""

import asyncio
from functools import partial
from pathlib import Path

import grpc
import pytest

from headwaiter_client import DeadlineExceeded
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value


async def test_a_request_whose_deadline_passes_in_the_queue_or_that_is_cancelled_there_never_runs(
    text_bundle: Path,
) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        queued = partial(metric_value, metrics_url(server), "headwaiter_queue_sequences")
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            # On busy cores, a call needs some of this time to reach the queue.
            late = asyncio.create_task(client.encode_tokens([[1] * 5, [1] * 7], timeout_s=1.5))
            await wait_until(client, lambda: queued() == 2)
            with pytest.raises(DeadlineExceeded, match=r"1\.5") as missed:
                await late
            assert code_of(missed.value) is grpc.StatusCode.DEADLINE_EXCEEDED
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_expired_total") == 2)
            cancelled = asyncio.create_task(client.encode_tokens([[1] * 5]))
            await wait_until(client, lambda: queued() == 1)
            cancelled.cancel()
            await wait_until(client, lambda: queued() == 0)
            device.resume()
            assert (await first).lengths.tolist() == [3]
        assert device.batch_lengths == [[3]]
