"""While the device is busy, requests whose caller has gone or whose deadline has passed never run."""

import asyncio
from pathlib import Path

import grpc
import pytest

from headwaiter_client import DeadlineExceeded, InvalidInput
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value, read_metric


async def test_a_deadline_in_the_past_fails_without_a_call(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with pytest.raises(InvalidInput) as refused:
            await client.encode(["bread"], timeout_s=0)
        assert refused.value.__cause__ is None  # There is no gRPC status.
        assert (await client.encode(["bread"])).pooled is not None
        assert await read_metric(metrics_url(server), "headwaiter_requests_total", method="Encode") == 1


async def test_a_request_whose_deadline_passes_in_the_queue_never_runs(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            # On busy cores, a call needs some of this time to reach the queue.
            second = asyncio.create_task(client.encode_tokens([[1] * 5, [1] * 7], timeout_s=1.5))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == 2)
            with pytest.raises(DeadlineExceeded) as late:
                await second
            assert code_of(late.value) is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "1.5" in str(late.value)
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_expired_total") == 2)
            device.resume()
            assert (await first).lengths.tolist() == [3]
        assert device.batch_lengths == [[3]]


async def test_a_cancelled_request_never_runs(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            second = asyncio.create_task(client.encode_tokens([[1] * 5]))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == 1)
            second.cancel()
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == 0)
            device.resume()
            assert (await first).lengths.tolist() == [3]
        assert device.batch_lengths == [[3]]
