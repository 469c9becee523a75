"""A draining server answers all admitted requests, refuses new requests, reports NOT_SERVING, and exits with 0."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import AsyncClient, RetryPolicy, Unavailable
from testbed.server_process import RunningServer, running_server
from tests.support.e2e.grpc_errors import is_from_server
from tests.support.e2e.http_calls import http_status

EXIT_TIMEOUT_S = 30
# Both of gRPC's messages for a call that never reached a server hold this: "failed to connect to all addresses" and
# "Failed to connect to remote host". A call that loses its server midway has another message.
NEVER_ARRIVED = "ailed to connect to"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_sigterm_under_load_loses_no_admitted_request_and_exits_with_0(text_bundle: Path) -> None:
    sequences = [[number % 60 + 1] * (number % 64 + 1) for number in range(100)]
    answered, refused = 0, list[Unavailable]()
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        # A client with retries would hide lost requests.
        without_retries = AsyncClient(server.address, retry=RetryPolicy(max_attempts=1))
        async with without_retries as client, grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # The type stubs lack Watch.
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            expected = np.concatenate([(await client.encode_tokens([each])).pooled for each in sequences])

            async def call(picks: list[int]) -> None:
                nonlocal answered
                try:
                    encoding = await client.encode_tokens([sequences[pick] for pick in picks], timeout_s=60)
                except Unavailable as error:
                    refused.append(error)
                    return
                np.testing.assert_allclose(encoding.pooled, expected[picks], rtol=0, atol=1e-5)
                answered += 1
                # The server refuses new requests for at most five seconds, and about 500 requests follow the signal.
                if answered == 1500:
                    server.process.send_signal(signal.SIGTERM)

            async def send(random: Random) -> None:
                for _ in range(4):
                    draws = [random.choices(range(len(sequences)), k=random.randint(1, 4)) for _ in range(8)]
                    await asyncio.gather(*map(call, draws))

            await asyncio.gather(*(send(Random(task)) for task in range(64)))
            assert (await watch.read()).status == NOT_SERVING
        status = await asyncio.to_thread(server.process.wait, EXIT_TIMEOUT_S)
    assert status == 0
    assert answered + len(refused) == 64 * 4 * 8
    assert refused
    # Any other error, for example a connection lost midway, could belong to an admitted request.
    for refusal in refused:
        assert NEVER_ARRIVED in str(refusal) or (is_from_server(refusal) and "shutting down" in str(refusal))


async def test_after_sigterm_a_server_with_a_delay_reports_not_serving_and_answers_until_sigint(
    text_bundle: Path,
) -> None:
    with running_server(text_bundle, ["--provider", "cpu", "--drain-delay-s", "600"]) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # The type stubs lack Watch.
            model_watch = health.Watch(health_pb2.HealthCheckRequest(service="headwaiter.v1.Encoder/tiny-text"))
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert [(await each.read()).status for each in (watch, model_watch)] == [SERVING, SERVING]
            assert _http_status(server, "/health/ready") == 200
            # Some supervisors send the signal twice.
            for _ in range(2):
                server.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.2)
            assert [(await each.read()).status for each in (watch, model_watch)] == [NOT_SERVING, NOT_SERVING]
            assert _http_status(server, "/health/ready") == 503
            assert _http_status(server, "/health/live") == 200
            for _ in range(8):
                async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
                    assert (await client.encode(["rain"])).lengths.tolist()
                    assert not await client.is_serving()
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.process.wait, EXIT_TIMEOUT_S) == 0


def _http_status(server: RunningServer, path: str) -> int:
    return http_status(server.metrics_url.replace("/metrics", path))


@pytest.mark.parametrize("first_load", [True, False], ids=["at start-up", "while serving"])
async def test_sigterm_during_a_load_ends_the_process_at_once(
    text_bundle: Path, tmp_path: Path, first_load: bool
) -> None:
    slow = tmp_path / "models" / "slow" / "1"
    if not first_load:
        shutil.copytree(text_bundle, tmp_path / "models" / "texts" / "1")
        slow = tmp_path / "slow"
    shutil.copytree(text_bundle, slow)
    # A sparse file that takes minutes to read, and no space.
    manifest = json.loads((slow / "manifest.json").read_text())
    (weights,) = (file for file in manifest["files"] if file["name"] == "weights.fp32.bin")
    weights["sizeBytes"] = str(1 << 40)
    os.truncate(slow / "weights.fp32.bin", 1 << 40)
    (slow / "manifest.json").write_text(json.dumps(manifest))
    flags = ["--models", str(tmp_path / "models"), "--provider", "cpu", "--watch-s", "0.1", "--drain-s", "2"]
    with running_server(None, flags, waits=not first_load) as server:
        if not first_load:
            (tmp_path / "models" / "slow").mkdir()
            slow.rename(tmp_path / "models" / "slow" / "1")
        async with asyncio.timeout(EXIT_TIMEOUT_S):
            while not _reads(server.process.pid, "weights.fp32.bin"):  # noqa: ASYNC110 - another process reads
                await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 7) == 0


def _reads(pid: int, name: str) -> bool:
    """Return whether a process has a file of this name open."""
    with suppress(OSError):
        return any(link.readlink().name == name for link in Path(f"/proc/{pid}/fd").iterdir())
    return False
