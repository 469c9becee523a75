"""Replicas are restarted in turn under load, and no call fails.

Behind HAProxy, the callers are stubs of gRPC that send no call twice. HAProxy runs with the file that the project
ships; the package `haproxy` of Debian or Ubuntu is enough.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import Client, HeadwaiterError
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderStub
from testbed.server_process import RunningServer, free_port, running_server
from tests.support.documents import ROOT

pytestmark = pytest.mark.exhaustive
CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
needs_haproxy = pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed: install HAProxy")
FLAGS = ["--provider", "cpu", "--threads", "1"]
# The shipped configuration recommends this delay.
PROXY_DELAY_S = 5
RESTARTS, CALLERS, PAUSE_S, TIMEOUT_S = 10, 8, 0.005, 20.0
REPLICAS = 3

# Sends one request with this number of tokens, and returns the vector of the reply.
Call = Callable[[int], NDArray[np.float32]]


class Replicas:
    """Servers that can be restarted in turn, each at its own address."""

    def __init__(self, bundle: Path, delay_s: float, stack: ExitStack, count: int = REPLICAS) -> None:
        self._bundle, self._flags, self._stack = bundle, [*FLAGS, "--drain-delay-s", f"{delay_s:g}"], stack
        self._servers = [self._start() for _ in range(count)]

    def _start(self, address: str = "") -> RunningServer:
        return self._stack.enter_context(running_server(self._bundle, self._flags, address=address))

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self._servers]

    def restart(self, index: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a replica with a signal, start it again, and return when it is SERVING."""
        stopped = self._servers[index]
        stopped.process.send_signal(number)
        assert stopped.process.wait(60) == (0 if number is signal.SIGTERM else -number)
        self._servers[index] = self._start(stopped.address)


class Load:
    """Callers that send one call after the other, and check each answer, during a `with` block."""

    def __init__(self, call: Call) -> None:
        self._call, self._ended = call, threading.Event()
        self.expected = {tokens: call(tokens) for tokens in range(1, CALLERS + 1)}
        self.answered, self.failed = 0, Counter[str]()

    def __enter__(self) -> "Load":
        self._threads = ThreadPoolExecutor(CALLERS)
        self._calling = [self._threads.submit(self._run, tokens) for tokens in self.expected]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._threads.shutdown()
        for each in self._calling:
            answered, failed = each.result()
            self.answered += answered
            self.failed += failed

    def _run(self, tokens: int) -> tuple[int, Counter[str]]:
        answered, failed = 0, Counter[str]()
        while not self._ended.wait(PAUSE_S):
            try:
                result = self._call(tokens)
            except grpc.RpcError as error:
                failed[f"{error.code().name}: {error.details()}"] += 1
            except HeadwaiterError as error:
                failed[f"{type(error).__name__}: {error}"] += 1
            else:
                assert np.allclose(result, self.expected[tokens], atol=1e-5)
                answered += 1
        return answered, failed


@contextmanager
def plain_calls(address: str) -> Iterator[Call]:
    """Call through a stub of gRPC that sends no call twice."""
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
        stub = EncoderStub(channel)  # type: ignore[no-untyped-call]

        def call(tokens: int) -> NDArray[np.float32]:
            data = np.arange(1, tokens + 1, dtype="<i4").tobytes()
            sequences = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=data, lengths=[tokens])
            reply = stub.Encode(pb.EncodeRequest(tokens=sequences), timeout=TIMEOUT_S)
            return np.frombuffer(reply.pooled.data, "<f4")

        yield call


@contextmanager
def running_haproxy(log: Path, replicas: list[str]) -> Iterator[str]:
    """Start HAProxy with the shipped configuration, and yield its address."""
    assert HAPROXY
    port = free_port()
    addresses = {f"REPLICA_{number}": each for number, each in enumerate(replicas, 1)}
    environment = {**os.environ, "LISTEN": f"127.0.0.1:{port}", **addresses}
    with log.open("wb") as errors:
        process = subprocess.Popen([HAPROXY, "-f", str(CONFIGURATION)], env=environment, stderr=errors)
    try:
        while True:
            assert process.poll() is None, log.read_text()
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@needs_haproxy
def test_rolling_restarts_behind_haproxy_fail_no_call_of_a_plain_stub(text_bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "haproxy.log"
    with ExitStack() as stack:
        replicas = Replicas(text_bundle, PROXY_DELAY_S, stack)
        proxy = stack.enter_context(running_haproxy(log, replicas.addresses))
        with Load(stack.enter_context(plain_calls(proxy))) as load:
            for number in range(RESTARTS):
                replicas.restart(number % REPLICAS)
        lines = log.read_text()
    print(f"{RESTARTS} restarts behind HAProxy: {load.answered:,} calls answered, failed: {dict(load.failed)}")
    assert load.answered > RESTARTS * 100
    assert not load.failed
    # HAProxy learns of each stop and each start from the health service, not from a connection that fails.
    changes = [line for line in lines.splitlines() if line.startswith("Server replicas/")]
    assert len([line for line in changes if "is DOWN, reason: Layer7 invalid response" in line]) == RESTARTS
    assert not [line for line in changes if "reason: Layer4" in line]
    # The last replica may not have been checked again yet.
    assert len([line for line in changes if "is UP, reason: Layer7 check passed" in line]) >= RESTARTS - 1


@pytest.mark.parametrize(
    ("count", "number", "restarts"),
    [(REPLICAS, signal.SIGTERM, RESTARTS), (2, signal.SIGKILL, 2), (1, signal.SIGTERM, 1), (1, signal.SIGKILL, 1)],
)
def test_restarts_fail_no_call_of_a_client(
    text_bundle: Path, count: int, number: signal.Signals, restarts: int
) -> None:
    with ExitStack() as stack:
        replicas = Replicas(text_bundle, 0, stack, count)
        addresses = replicas.addresses
        client = stack.enter_context(Client(addresses if count > 1 else addresses[0], timeout_s=TIMEOUT_S))

        def call(tokens: int) -> NDArray[np.float32]:
            vector: NDArray[np.float32] = client.encode_tokens([list(range(1, tokens + 1))]).pooled[0]
            return vector

        with Load(call) as load:
            time.sleep(0.5)
            for turn in range(restarts):
                replicas.restart(turn % count, number)
    print(f"{restarts} restarts behind the client: {load.answered:,} calls answered, failed: {dict(load.failed)}")
    assert load.answered > 2 * CALLERS
    assert not load.failed
