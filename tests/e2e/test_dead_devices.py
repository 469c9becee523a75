"""A device that dies or hangs ends the server; a sequence that kills devices kills at most two of a fleet."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import AsyncClient, DeviceFailed, Encoding, InferenceFailed, RetryPolicy, Unavailable
from testbed.server_process import running_server
from tests.support.e2e.grpc_errors import code_of, is_from_server
from tests.support.e2e.in_process_server import serving, wait_until
from tests.support.e2e.mortal_devices import HANG, KILL, MortalDevices, mortal_devices
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.tiers import exhaustive

# The neighbours of a sequence that kills devices.
INNOCENT = [[length] * length for length in range(1, 9)]
PATIENT = RetryPolicy(max_attempts=200)
TIMEOUT_S = 30.0


@pytest.fixture
def mortal() -> Iterator[MortalDevices]:
    with mortal_devices() as mortal:
        yield mortal


async def test_a_server_whose_device_hangs_answers_unavailable_and_exits_with_3(text_bundle: Path) -> None:
    program = [sys.executable, "-m", "tests.support.e2e.mortal_devices"]
    with running_server(text_bundle, ["--provider", "cpu"], program=program) as server:
        without_retries = AsyncClient(server.address, retry=RetryPolicy(max_attempts=1))
        async with without_retries as client, grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # The type stubs lack Watch.
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            hanging = asyncio.create_task(client.encode_tokens([HANG], timeout_s=TIMEOUT_S))
            url = server.metrics_url
            await wait_until(client, lambda: metric_value(url, "headwaiter_batches_closed_total") == 1)
            waiting = [client.encode_tokens([sequence], timeout_s=TIMEOUT_S) for sequence in ([1], [2])]
            answers = await asyncio.gather(hanging, *waiting, return_exceptions=True)
            for answer in answers:
                assert isinstance(answer, Unavailable)
                assert code_of(answer) is grpc.StatusCode.UNAVAILABLE
                assert is_from_server(answer)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 3


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_server_whose_device_dies_answers_all_callers_and_exits_with_3(
    text_bundle: Path, tmp_path: Path, leaving: bool
) -> None:
    program = [sys.executable, "-m", "tests.support.e2e.mortal_devices"]
    flags, log = ["--provider", "cpu", "--drain-delay-s", "600"], tmp_path / "server.log"
    with (
        log.open("wb") as errors,
        running_server(text_bundle, flags, program=program, log=errors) as server,
    ):
        # Each call is a request of its own, so that each answer is the server's only one.
        async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1), share_requests=False) as client:
            if leaving:
                server.process.terminate()
                while await client.is_serving():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            sequences = [KILL, *INNOCENT]
            calls = [client.encode_tokens([sequence], timeout_s=TIMEOUT_S) for sequence in sequences]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], DeviceFailed)
        for answer in answers[1:]:
            assert isinstance(answer, Encoding | Unavailable)
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 3
    (line,) = [line for line in log.read_text().splitlines() if "ERROR" in line]
    assert "the GPU fell off the bus" in line


@pytest.mark.parametrize("partial", [False, *exhaustive(True)])
async def test_a_sequence_kills_at_most_two_devices_of_a_fleet(
    mortal: MortalDevices, text_bundle: Path, partial: bool
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(serving(text_bundle)) for _ in range(5)]
        addresses = [f"127.0.0.1:{replica.port}" for replica in replicas]
        client = await stack.enter_async_context(AsyncClient(addresses, retry=PATIENT, timeout_s=TIMEOUT_S))
        # All calls share a request.
        lists = [[[3], KILL, [4]], *([sequence] for sequence in INNOCENT)]
        calls = [client.encode_tokens(sequences, partial=partial) for sequences in lists]
        killed, *innocent = await asyncio.gather(*calls, return_exceptions=True)
        assert mortal.deaths == 2
        assert isinstance(killed, InferenceFailed)
        assert killed.sequence == 1
        assert [answer.lengths.tolist() for answer in innocent if isinstance(answer, Encoding)] == [
            [len(sequence)] for sequence in INNOCENT
        ]
