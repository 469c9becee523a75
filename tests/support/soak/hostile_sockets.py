"""Attack a server with connections that are silent, slow or greedy, as a program.

The arguments are the addresses of gRPC and of HTTP, and the seconds of the attack. The attackers have a
process of their own, so an honest caller shares neither interpreter nor event loop with them.
"""

import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2

from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer
from tests.support.e2e.raw_http2 import RawConnection
from tests.support.server_processes import processes
from tests.support.soak.checks import holdings, memory_mib, sampled_memory
from tests.support.soak.honest_caller import HonestCaller, Measurement
from tests.support.soak.partial_messages import PartialMessages
from tests.support.soak.report import table

_MIB = 1 << 20
_SILENT_HTTP, _HALF_HEADERS, _SILENT_GRPC, _SLOW_BODIES, _WATCHES = 400, 300, 150, 40, 400
_PARTIAL_STREAMS = 60
_MAX_GROWTH_MIB, _MAX_P99_RATIO, _SETTLE_S = 256.0, 3.0, 30.0
_CALM_S, _BESIDE_S = 20.0, 60.0
_SLOW_POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"


def _hold(address: str, first: bytes, each_s: float, then: bytes, seconds: float, connections: int) -> None:
    """Hold connections that send a few bytes, and open new ones for those that the server closes."""
    host, _, port = address.rpartition(":")
    end_s, held = time.monotonic() + seconds, list[socket.socket]()
    while time.monotonic() < end_s:
        alive = []
        for each in held:
            try:
                if then:
                    each.send(then)
                elif each.recv(1) == b"":
                    raise OSError
            except BlockingIOError:
                pass
            except OSError:
                each.close()
                continue
            alive.append(each)
        held = alive
        for _ in range(min(50, connections - len(held))):
            with suppress(OSError):
                opened = socket.create_connection((host, int(port)), timeout=2)
                opened.setblocking(False)
                held.append(opened)
                if first:
                    opened.send(first)
        time.sleep(each_s)
    for each in held:
        each.close()


def _partial(address: str, seconds: float) -> None:
    paths = ["/headwaiter.v1.Encoder/Encode", "/grpc.health.v1.Health/Check", "/headwaiter.v1.Encoder/EncodeStream"]
    end_s, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        with suppress(OSError):
            attack = PartialMessages(address, paths[turn % 3], _PARTIAL_STREAMS, 4 * _MIB)
            attack.run(5.0)
            time.sleep(5.0)
            attack.close()
        turn += 1


def _watch(address: str, seconds: float) -> None:
    channels = [grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    watches: list[Any] = [channel.unary_stream("/grpc.health.v1.Health/Watch") for channel in channels]
    request = health_pb2.HealthCheckRequest().SerializeToString()
    calls = [watches[number % 4](request) for number in range(_WATCHES)]
    time.sleep(seconds)
    for call in calls:
        call.cancel()
    for channel in channels:
        channel.close()


def _leave_unread(address: str, seconds: float) -> None:
    # Few texts, because the time that a device needs for them delays others too, whether the replies are read or not.
    request = pb.EncodeRequest(texts=pb.Texts(values=["bread " * 20] * 20), output=pb.OutputOptions(hidden=True))
    port, end_s = int(address.rpartition(":")[2]), time.monotonic() + seconds
    while time.monotonic() < end_s:
        with suppress(OSError), RawConnection(port, window_bytes=0) as greedy:
            for _ in range(20):
                greedy.call("Encode", request.SerializeToString())
                greedy.call("ListBatches", b"")
            time.sleep(10.0)


def attack(grpc_address: str, http_address: str, seconds: float) -> None:
    """Run all attacks at once."""
    attacks: list[Callable[[], None]] = [
        lambda: _hold(http_address, b"", 0.5, b"", seconds, _SILENT_HTTP),
        lambda: _hold(http_address, b"GET /metrics HTTP/1.1\r\nHost: ", 1.0, b"x", seconds, _HALF_HEADERS),
        lambda: _hold(http_address, _SLOW_POST, 1.0, b" ", seconds, _SLOW_BODIES),
        lambda: _hold(grpc_address, b"", 0.5, b"", seconds, _SILENT_GRPC),
        lambda: _partial(grpc_address, seconds),
        lambda: _watch(grpc_address, seconds),
        lambda: _leave_unread(grpc_address, seconds),
    ]
    threads = [threading.Thread(target=each) for each in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Readiness:
    """Asks every half second whether the server is ready."""

    def __init__(self, server: RunningServer) -> None:
        self._url = server.metrics_url.replace("/metrics", "/health/ready")
        self.seconds: list[float] = []
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            started_s = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=5) as response:
                    self.failures += response.status != 200
            except OSError:
                self.failures += 1
            self.seconds.append(time.monotonic() - started_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _cpu_s(server: RunningServer) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes(server))


def _attackers(server: RunningServer, seconds: float) -> psutil.Popen:
    http_address = server.metrics_url.split("/")[2]
    return psutil.Popen(
        [sys.executable, "-m", "tests.support.soak.hostile_sockets", server.address, http_address, str(seconds)]
    )


def hostile_sockets(server: RunningServer, beside: RunningServer, seconds: float) -> list[str]:
    """Attack for some seconds; return the promises that the server has broken.

    The attackers first attack another server `beside`: that shows what they and their victim take from the processor.
    """
    calm, other, attacked, after = Measurement(), Measurement(), Measurement(), Measurement()
    with HonestCaller(server.address) as caller:
        with caller.measuring(calm):
            time.sleep(_CALM_S)
        attackers = _attackers(beside, min(seconds, _BESIDE_S))
        with caller.measuring(other):
            attackers.wait()
        before_mib = memory_mib(server)
        readiness = _Readiness(server)
        attackers = _attackers(server, seconds)
        cpu_before, wall_s = _cpu_s(server), time.monotonic()
        with sampled_memory(server) as samples_mib, caller.measuring(attacked):
            while attackers.is_running() and time.monotonic() - wall_s < seconds:
                time.sleep(0.5)
        share = (_cpu_s(server) - cpu_before) / (time.monotonic() - wall_s)
        attackers.wait()
        readiness.stop()
        time.sleep(_SETTLE_S)
        with caller.measuring(after):
            time.sleep(_CALM_S)
    growth_mib = max(samples_mib) - before_mib
    rows = [
        (
            name,
            f"{len(each.latencies_ms):,}",
            f"{median(each.latencies_ms):.2f}",
            f"{each.p99_ms:.2f}",
            str(_kinds(each.errors)),
        )
        for name, each in (
            ("calm", calm),
            ("another server attacked", other),
            ("attacked", attacked),
            ("30 s later", after),
        )
    ]
    print(table(("honest caller", "answers", "p50 ms", "p99 ms", "errors"), rows))
    print(
        f"memory: +{growth_mib:.0f} MiB at most, +{memory_mib(server) - before_mib:.0f} MiB after "
        f"{_SETTLE_S:.0f} s; the server took {share:.2f} cores; readiness: {len(readiness.seconds)} answers, "
        f"{readiness.failures} failures, {max(readiness.seconds):.2f} s at most; "
        f"{holdings(server)['open files']} descriptors"
    )
    broken = [f"memory grew by {growth_mib:.0f} MiB"] * (growth_mib > _MAX_GROWTH_MIB)
    ratio = attacked.p99_ms / max(calm.p99_ms, other.p99_ms)
    broken += [f"p99 is {ratio:.1f} times as high under attack"] * (ratio > _MAX_P99_RATIO)
    broken += [f"readiness failed {readiness.failures} times"] * bool(readiness.failures)
    errors = attacked.errors + after.errors
    broken += [f"the honest caller got {_kinds(errors)}, for example {next(iter(errors), '')}"] * bool(errors)
    return broken


def _kinds(errors: Counter[str]) -> dict[str, int]:
    kinds = Counter[str]()
    for error, count in errors.items():
        kinds[error.partition(" ")[0]] += count
    return dict(kinds)


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], float(sys.argv[3]))
