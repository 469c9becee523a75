"""A device that dies or hangs fails its callers at once; a sequence that kills devices kills at most two."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import AsyncClient, Client, Encoding, InferenceFailed, RetryPolicy, Unavailable
from headwaiter_server.app import Server
from testbed.server_process import running_server
from tests.e2e.grpc_errors import code_of, is_from_server
from tests.e2e.in_process_server import connect, metrics_url, serving, wait_until
from tests.e2e.mortal_devices import HANG, KILL, MortalDevices, mortal_devices
from tests.e2e.prometheus_metrics import metric_value

# The neighbours of a sequence that kills devices.
INNOCENT = [[length] * length for length in range(1, 9)]
PATIENT = RetryPolicy(max_attempts=200)
TIMEOUT_S = 30.0


@pytest.fixture
def mortal() -> Iterator[MortalDevices]:
    with mortal_devices() as mortal:
        yield mortal


@pytest.fixture
async def server(mortal: MortalDevices, text_bundle: Path) -> AsyncIterator[Server]:
    async with serving(text_bundle) as server:
        yield server


async def test_a_server_whose_device_hangs_answers_unavailable_and_exits_with_1(text_bundle: Path) -> None:
    program = [sys.executable, "-m", "tests.e2e.mortal_devices"]
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
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 1


async def test_a_sequence_that_kills_a_device_twice_fails_and_its_neighbours_succeed(
    mortal: MortalDevices, server: Server
) -> None:
    async with connect(server) as client, patient_client(server) as patient:
        mortal.held.clear()
        running = asyncio.create_task(client.encode_tokens([[1]]))
        assert await asyncio.to_thread(mortal.entered.wait, TIMEOUT_S)
        first = [asyncio.create_task(client.encode_tokens([sequence])) for sequence in (KILL, *INNOCENT)]
        url = metrics_url(server)
        await wait_until(client, lambda: metric_value(url, "headwaiter_queue_sequences") == len(first))
        mortal.held.set()
        await running
        first_errors = await asyncio.gather(*first, return_exceptions=True)
        assert all(isinstance(error, Unavailable) for error in first_errors)
        assert mortal.deaths == 1

        await patient.encode_tokens([[1]])  # The device is open again.
        second = [patient.encode_tokens([sequence]) for sequence in (KILL, *INNOCENT)]
        killed, *innocent = await asyncio.gather(*second, return_exceptions=True)
        assert isinstance(killed, InferenceFailed)
        assert (code_of(killed), killed.sequence) == (grpc.StatusCode.INTERNAL, 0)
        assert [answer.lengths.tolist() for answer in innocent if isinstance(answer, Encoding)] == [
            [len(sequence)] for sequence in INNOCENT
        ]

        # A third server call with the sequence does not reach a device.
        await patient.encode_tokens([[1]])
        with pytest.raises(InferenceFailed):
            await client.encode_tokens([KILL])
        partial = await client.encode_tokens([[1], KILL, [2]], partial=True)
        assert {index: type(error) for index, error in partial.failures.items()} == {1: InferenceFailed}
        assert mortal.deaths == 2


@pytest.mark.parametrize(
    ("replica_count", "partial"),
    [
        pytest.param(2, False, id="two"),
        pytest.param(3, False, id="three", marks=pytest.mark.exhaustive),
        pytest.param(3, True, id="partial", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_sequence_kills_at_most_two_devices_of_a_fleet(
    mortal: MortalDevices, text_bundle: Path, replica_count: int, partial: bool
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(serving(text_bundle)) for _ in range(replica_count)]
        addresses = [f"127.0.0.1:{replica.port}" for replica in replicas]
        client = await stack.enter_async_context(AsyncClient(addresses, retry=PATIENT, timeout_s=TIMEOUT_S))
        killing = client.encode_tokens([[3], KILL, [4]], partial=partial)
        calls = [killing, *(client.encode_tokens([sequence]) for sequence in INNOCENT)]
        killed, *innocent = await asyncio.gather(*calls, return_exceptions=True)
        assert mortal.deaths == 2
        assert isinstance(killed, InferenceFailed)
        assert killed.sequence == 1
        assert [answer.lengths.tolist() for answer in innocent if isinstance(answer, Encoding)] == [
            [len(sequence)] for sequence in INNOCENT
        ]


async def test_the_client_for_threads_kills_at_most_two_devices_too(mortal: MortalDevices, server: Server) -> None:
    def encode() -> Encoding:
        with Client(f"127.0.0.1:{server.port}", timeout_s=TIMEOUT_S) as client:
            return client.encode_tokens([KILL])

    (error,) = await asyncio.gather(asyncio.to_thread(encode), return_exceptions=True)
    assert mortal.deaths == 2
    assert isinstance(error, InferenceFailed)


@pytest.mark.parametrize("instances", [1, 2])
async def test_a_dead_session_is_gone_before_its_successor_opens(
    mortal: MortalDevices, text_bundle: Path, instances: int
) -> None:
    async with (
        serving(text_bundle, instances=instances) as server,
        connect(server) as client,
        patient_client(server) as patient,
    ):
        for deaths in range(1, 3):
            with pytest.raises((Unavailable, InferenceFailed)):
                await client.encode_tokens([[1], KILL], timeout_s=TIMEOUT_S)
            await patient.encode_tokens([[1]])
            async with asyncio.timeout(TIMEOUT_S):
                while mortal.opened_count < instances + deaths:  # noqa: ASYNC110 - the session opens in a thread
                    await asyncio.sleep(0.01)
    at_start, later = mortal.alive_at_opening[:instances], mortal.alive_at_opening[instances:]
    assert [len(alive) for alive in at_start] == list(range(instances))
    # Of all sessions before, only those of the other workers are left.
    assert [len(alive) for alive in later] == [instances - 1] * 2


def patient_client(server: Server) -> AsyncClient:
    """Return a client that retries until the server's device is open again."""
    return AsyncClient(f"127.0.0.1:{server.port}", retry=PATIENT, timeout_s=TIMEOUT_S)
