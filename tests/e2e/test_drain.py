"""A server that is told to stop answers what it admitted, refuses the rest, says so to health checks, and exits."""

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
from tests.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.e2e.prometheus_metrics import metric_value

EXIT_S = 30
REFUSED_BEFORE_ADMISSION = "the server is shutting down"
# gRPC's words for a call that never reached a server; for one that lost its server underway it has others.
NEVER_ARRIVED = "failed to connect to all addresses"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_sigterm_under_load_loses_no_admitted_request_and_exits_with_0(text_bundle: Path) -> None:
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        # A client that tries again would hide what was lost.
        once = AsyncClient(server.address, retry=RetryPolicy(max_attempts=1))
        async with once as client, grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # Its types lack Watch.
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            load = CancellingLoad(client)
            await load.encode_known_sequences()
            await load.run(lambda answered: server.process.send_signal(signal.SIGTERM) if answered == 300 else None)
            assert (await watch.read()).status == NOT_SERVING
        status = await asyncio.to_thread(server.process.wait, EXIT_S)
    assert status == 0
    assert load.answered + load.cancelled + len(load.refused) == REQUESTS
    assert load.refused
    # Anything else, a connection lost underway or a call cut off, could be a request that was admitted.
    for refusal in load.refused:
        assert str(refusal).startswith((REFUSED_BEFORE_ADMISSION, NEVER_ARRIVED))


async def test_a_drain_answers_what_was_admitted_and_refuses_what_comes_after(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = [asyncio.create_task(client.encode_tokens([[1] * length])) for length in range(1, 21)]
            await wait_until(
                client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == len(waiting)
            )
            assert await client.is_serving()

            drained = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable, match=REFUSED_BEFORE_ADMISSION):
                await client.encode_tokens([[1]])
            assert not await client.is_serving()
            assert not drained.done()

            device.resume()
            answers = await asyncio.gather(running, *waiting)
            await drained
    assert [answer.lengths.tolist() for answer in answers] == [[3], *([length] for length in range(1, 21))]
