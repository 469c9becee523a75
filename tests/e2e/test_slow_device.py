"""While the device is busy: deadlines, cancellation and the bound of the queue, without a wrong or a lost answer."""

import asyncio
from pathlib import Path
from typing import cast

import grpc
import pytest

from headwaiter_client import DeadlineExceeded, HeadwaiterError, Overloaded
from tests.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.e2e.prometheus_metrics import metric_value


async def test_a_deadline_that_passed_before_the_call_is_told_without_a_call(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with pytest.raises(DeadlineExceeded, match="the deadline had passed before the call"):
            await client.encode(["bread"], timeout_s=0)
        assert (await client.encode(["bread"])).pooled is not None


async def test_a_request_whose_deadline_passes_while_it_waits_never_runs(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s") as late:
                await client.encode_tokens([[1] * 5, [1] * 7], timeout_s=0.2)
            assert code_of(late.value) is grpc.StatusCode.DEADLINE_EXCEEDED
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_expired_total") == 2)
            device.resume()
            assert (await first).lengths.tolist() == [3]
        assert device.batch_lengths == [[3]]


async def test_a_request_whose_caller_went_away_never_runs(text_bundle: Path) -> None:
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


async def test_a_request_beyond_the_queues_bound_is_told_when_to_come_again(text_bundle: Path) -> None:
    bounds = {"max_queue_tokens": 10, "max_request_tokens": 10}
    async with (
        serving(text_bundle, **bounds) as server,
        connect(server) as client,
    ):
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = asyncio.create_task(client.encode_tokens([[1] * 8]))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_tokens") == 8)
            with pytest.raises(Overloaded, match="the queue holds 8 of 10 tokens and the request has 4") as refused:
                await client.encode_tokens([[1] * 4])
            assert code_of(refused.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused.value.retry_after_s is not None
            assert refused.value.retry_after_s > 0
            device.resume()
            assert [(await call).lengths.tolist() for call in (running, waiting)] == [[3], [8]]


def code_of(error: HeadwaiterError) -> grpc.StatusCode:
    return cast("grpc.Call", error.__cause__).code()
