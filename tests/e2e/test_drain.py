"""A draining server answers all admitted requests, refuses new requests, reports NOT_SERVING, and exits with 0."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import AsyncClient, RetryPolicy, Unavailable
from testbed.server_process import running_server
from tests.e2e.cancelling_load import REQUESTS, CancellingLoad
from tests.e2e.grpc_errors import is_from_server
from tests.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.e2e.prometheus_metrics import metric_value

EXIT_TIMEOUT_S = 30
# Both of gRPC's messages for a call that never reached a server hold this: "failed to connect to all addresses" and
# "Failed to connect to remote host". A call that loses its server midway has another message.
NEVER_ARRIVED = "ailed to connect to"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_sigterm_under_load_loses_no_admitted_request_and_exits_with_0(text_bundle: Path) -> None:
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        # A client with retries would hide lost requests.
        without_retries = AsyncClient(server.address, retry=RetryPolicy(max_attempts=1))
        async with without_retries as client, grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # The type stubs lack Watch.
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            load = CancellingLoad(client)
            await load.encode_known_sequences()
            await load.run(lambda answered: server.process.send_signal(signal.SIGTERM) if answered == 300 else None)
            assert (await watch.read()).status == NOT_SERVING
        status = await asyncio.to_thread(server.process.wait, EXIT_TIMEOUT_S)
    assert status == 0
    assert load.answered + load.cancelled + len(load.refused) == REQUESTS
    assert load.refused
    # Any other error, for example a connection lost midway, could belong to an admitted request.
    for refusal in load.refused:
        assert is_refused_by_draining_server(refusal) or NEVER_ARRIVED in str(refusal)


async def test_a_drain_answers_admitted_requests_and_refuses_new_ones(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = [asyncio.create_task(client.encode_tokens([[1] * length])) for length in range(1, 21)]
            url = metrics_url(server)
            await wait_until(client, lambda: metric_value(url, "headwaiter_queue_sequences") == len(waiting))
            assert await client.is_serving()

            drained = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable) as refused:
                await client.encode_tokens([[1]])
            assert is_refused_by_draining_server(refused.value)
            assert not await client.is_serving()
            assert not drained.done()

            device.resume()
            answers = await asyncio.gather(running, *waiting)
            await drained
    assert [answer.lengths.tolist() for answer in answers] == [[3], *([length] for length in range(1, 21))]


def is_refused_by_draining_server(error: Unavailable) -> bool:
    return is_from_server(error) and "shutting down" in str(error)
