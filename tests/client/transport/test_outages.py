"""Replicas in processes of their own are killed, restarted and frozen under load, and both clients lose no call."""

import asyncio
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from headwaiter_client import AsyncClient, Client, DeadlineExceeded, Unavailable
from headwaiter_client.calls.steps import HEALTH_METHOD, METHODS
from headwaiter_client.transport.connection import Connection
from tests.support.client.both_clients import open_client
from tests.support.client.fake_server import FakeServer
from tests.support.client.replica_process import ReplicaProcess, free_ports, running_replicas
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("starts_processes")

ENCODE = METHODS["Encode"]


class _Attempts(grpc.UnaryUnaryClientInterceptor, grpc.aio.UnaryUnaryClientInterceptor):
    """Notes the time and the method of all that a client sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, str]] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        self.sent.append((time.monotonic(), method))
        return continuation(details, request)

    def methods(self, since_s: float, until_s: float = float("inf")) -> Counter[str]:
        return Counter(method for sent_s, method in self.sent if since_s <= sent_s < until_s)


class _Load:
    """Callers of one client that call without a pause until the end of a `with` block, and check each answer.

    Attributes:
        attempts: what the client sent.
        answers: the time and the replica of each answer.
        errors: the errors of the calls that failed.
        longest_s: the longest time that a call took.
    """

    def __init__(
        self, client_class: type[Client] | type[AsyncClient], address: Any, callers: int, timeout_s: float
    ) -> None:
        self.attempts = _Attempts()
        self.answers: list[tuple[float, str]] = []
        self.errors: list[Exception] = []
        self.longest_s = 0.0
        self._name = f"{client_class.__name__}({address}), {callers} callers with {timeout_s:g} s"
        self._client_class, self._address = client_class, address
        self._callers, self._timeout_s = callers, timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "_Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __str__(self) -> str:
        return self._name

    @property
    def calls(self) -> int:
        return len(self.answers) + len(self.errors)

    def run_until_answered_by(self, *replicas: ReplicaProcess) -> float:
        """Wait until each replica has answered 20 further calls, and return the seconds that this took."""
        started_s = time.monotonic()
        while True:
            counts = Counter(name for answered_s, name in list(self.answers) if answered_s > started_s)
            if all(counts[str(replica.port)] >= 20 for replica in replicas):
                return time.monotonic() - started_s
            time.sleep(0.05)

    async def _run(self) -> None:
        async with open_client(self._client_class, self._address, interceptors=[self.attempts]) as client:
            await asyncio.gather(*(self._call(client, 1 + caller % 8) for caller in range(self._callers)))

    async def _call(self, client: Any, tokens: int) -> None:
        while not self._ended.is_set():
            started_s = time.monotonic()
            try:
                encoding = await client.encode_tokens([[1] * tokens], timeout_s=self._timeout_s)
                assert encoding.lengths.tolist() == [tokens]
                self.answers.append((time.monotonic(), encoding.model.name))
            except Exception as error:  # noqa: BLE001 A test looks at all errors.
                self.errors.append(error)
            self.longest_s = max(self.longest_s, time.monotonic() - started_s)


def _addresses(replicas: list[ReplicaProcess]) -> list[str]:
    return [f"127.0.0.1:{replica.port}" for replica in replicas]


@pytest.mark.parametrize(
    "client_class", [pytest.param(Client, id="sync"), *exhaustive(pytest.param(AsyncClient, id="async"))]
)
def test_no_call_fails_while_replicas_die_drain_and_come_back(client_class: Any) -> None:
    with running_replicas(free_ports(3)) as replicas:
        killed, drained, steady = replicas
        with _Load(client_class, _addresses(replicas), callers=8, timeout_s=30) as load:
            load.run_until_answered_by(*replicas)
            killed.stop(signal.SIGKILL)
            load.run_until_answered_by(drained, steady)
            drained.stop(signal.SIGTERM)
            load.run_until_answered_by(steady)
            for replica in (killed, drained):
                replica.start()
            load.run_until_answered_by(*replicas)
    assert load.errors == []


@pytest.mark.parametrize("kills", [1, *exhaustive(10)])
def test_no_call_of_256_in_flight_fails_when_one_of_two_replicas_is_killed(client_class: Any, kills: int) -> None:
    for _ in range(kills):
        with running_replicas(free_ports(2)) as replicas:
            with _Load(client_class, _addresses(replicas), callers=256, timeout_s=10) as load:
                load.run_until_answered_by(*replicas)
                replicas[0].stop(signal.SIGKILL)
                load.run_until_answered_by(replicas[1])
            replicas[0].start()  # For the end of the block.
        assert load.errors == []
        print(f"{load}: no call of {load.calls} failed")


async def test_no_call_of_64_fails_when_each_is_refused_twice_with_a_delay(
    client_class: Any, server: FakeServer
) -> None:
    delay = Duration()
    delay.FromMilliseconds(500)
    server.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", error_details_pb2.RetryInfo(retry_delay=delay))
    server.refusals_left = 128
    async with open_client(client_class, server.address, share_requests=False) as client:
        await asyncio.gather(*(client.encode(["a"]) for _ in range(64)))
    assert server.refusals_left == 0


@pytest.mark.exhaustive
def test_no_call_fails_while_the_only_server_restarts() -> None:
    with running_replicas(free_ports(1)) as replicas, ExitStack() as stack:
        (address,) = _addresses(replicas)
        loads = [
            stack.enter_context(_Load(client_class, one, callers=16, timeout_s=10))
            for client_class in (Client, AsyncClient)
            for one in (address, [address])
        ]
        for load in loads:
            load.run_until_answered_by(*replicas)
        before, before_s = [load.calls for load in loads], time.monotonic()
        replicas[0].stop(signal.SIGKILL)
        time.sleep(1.5)
        replicas[0].start()
        for load, calls in zip(loads, before, strict=True):
            load.run_until_answered_by(*replicas)
            during, attempts = load.calls - calls, load.attempts.methods(since_s=before_s)[ENCODE]
            assert load.errors == []
            assert attempts <= 3 * during
            print(f"{load}: no call of {during} failed, {attempts / during:.2f} attempts a call")


@pytest.mark.exhaustive
async def test_no_call_fails_in_a_restart_after_which_some_connections_come_back_late(
    client_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with a server of several front ends: each connection waits on its own before it connects again.
    late = [(f"grpc.{name}_reconnect_backoff_ms", 4_000) for name in ("initial", "min", "max")]

    def several(open_channels: Any) -> Any:
        def opened(connection: Connection, index: int, credentials: Any, _: int = 1) -> list[Any]:
            both = (connection, replace(connection, channel_options=late)) * 4
            return [channel for each in both for channel in open_channels(each, index, credentials)]

        return opened

    for name in ("channels", "aio_channels"):
        monkeypatch.setattr(Connection, name, several(getattr(Connection, name)))

    (port,) = free_ports(1)
    with running_replicas([port]) as replicas:
        async with open_client(client_class, f"127.0.0.1:{port}") as client:

            async def call_together() -> None:
                await asyncio.gather(*(client.encode_tokens([[1, 2]], timeout_s=20) for _ in range(32)))

            await call_together()
            replicas[0].stop(signal.SIGKILL)
            # These calls try all connections while nothing listens, so the late ones wait.
            calls = asyncio.create_task(call_together())
            await asyncio.sleep(0.5)
            replicas[0].start()
            await calls


@pytest.mark.parametrize(("seconds", "timeout_s"), [(3, 1), *exhaustive((60, 10))])
def test_each_call_is_sent_once_while_the_only_server_is_down(seconds: float, timeout_s: float) -> None:
    with running_replicas(free_ports(1)) as replicas:
        (address,) = _addresses(replicas)
        with (
            _Load(Client, address, callers=16, timeout_s=timeout_s) as blocking,
            _Load(AsyncClient, address, callers=16, timeout_s=timeout_s) as asynchronous,
        ):
            loads = [blocking, asynchronous]
            for load in loads:
                load.run_until_answered_by(*replicas)
            replicas[0].stop(signal.SIGKILL)
            time.sleep(0.1)  # The calls in flight fail.
            down_s = time.monotonic()
            time.sleep(seconds)
            replicas[0].start()
    for load in loads:
        sent = load.attempts.methods(since_s=down_s, until_s=down_s + seconds)
        # A call that is sent to the server as it starts may reach its deadline there.
        assert Unavailable in (classes := {type(error) for error in load.errors})
        assert classes <= {Unavailable, DeadlineExceeded}
        assert load.longest_s < timeout_s + 1
        # Each call is sent once when it starts, and once when a server is back; the rest are probes, at most one a
        # second.
        assert sent[ENCODE] <= len(load.errors) + 16
        assert sent[HEALTH_METHOD] <= seconds + 5
        print(f"{load}: {dict(sent)} in {seconds:g} s, {len(load.errors)} calls failed, {load.longest_s:.2f} s at most")


def _freeze(seconds: float, *settings: tuple[type[Client] | type[AsyncClient], int, float]) -> list[_Load]:
    """Freeze one of two replicas under several loads, wake it, and return the loads.

    Args:
        seconds: how long the replica is frozen; no call fails in the second half of the time.
        settings: the class of the client, the callers, and the timeout of each load.
    """
    with running_replicas(free_ports(2)) as replicas, ExitStack() as stack:
        loads = [
            stack.enter_context(_Load(client_class, _addresses(replicas), callers, timeout_s))
            for client_class, callers, timeout_s in settings
        ]
        for load in loads:
            load.run_until_answered_by(*replicas)
        replicas[0].send(signal.SIGSTOP)
        time.sleep(seconds / 2)
        failed = [len(load.errors) for load in loads]
        time.sleep(seconds / 2)
        assert [len(load.errors) for load in loads] == failed
        replicas[0].send(signal.SIGCONT)
        for load in loads:
            back_s = load.run_until_answered_by(*replicas)
            assert back_s < 5
            print(f"{load}: {len(load.errors)} calls failed, {back_s:.2f} s until the replica was back")
    return loads


# The connection of a replica that is frozen for 70 s does not survive.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("seconds", "callers"), [(3, 16), (70, 4)])
def test_calls_move_away_from_a_frozen_replica_before_their_deadline(seconds: float, callers: int) -> None:
    for load in _freeze(seconds, (Client, callers, 2), (AsyncClient, callers, 2)):
        assert load.errors == []


@pytest.mark.exhaustive
def test_a_frozen_replica_fails_at_most_three_calls_of_one_caller_that_are_too_short_for_a_probe() -> None:
    long, long_async, *short = _freeze(
        4, (Client, 1, 2), (AsyncClient, 1, 2), (Client, 1, 0.24), (AsyncClient, 1, 0.24)
    )
    assert long.errors == long_async.errors == []
    for load in short:
        assert len(load.errors) <= 3
        assert all(type(error) is DeadlineExceeded for error in load.errors)
