"""Sends unary gRPC calls with h2load, part of nghttp2, whose calls cost far less CPU time than those of a server."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.measure import server_cpu_s
from testbed.server_process import RunningServer


class Sent(NamedTuple):
    """The calls/s, and the CPU time of a call in the process that was started and in its children."""

    calls_per_s: float
    cpu_us: float
    children_cpu_us: float


def send_calls(server: RunningServer, method: str, message: bytes, calls: int, connections: int, streams: int) -> Sent:
    """Send one message again and again.

    h2load sees only the status of HTTP, which is 200 for calls that fail, too: compare the server's own counts.

    Args:
        server: the server.
        method: path of the gRPC method.
        message: the serialized request.
        calls: number of calls.
        connections: number of connections.
        streams: calls in flight on each connection.
    """
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder, "body")
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        load = ["h2load", "-n", str(calls), "-c", str(connections), "-m", str(streams), "-d", str(body)]
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command = [*load, *headers, f"http://{server.address}{method}"]
        before_s = server_cpu_s(server)
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cpu_us = (1e6 * (after - before) / calls for after, before in zip(server_cpu_s(server), before_s, strict=True))
    assert f" {calls} succeeded, 0 failed" in output, output
    rate = re.search(r"([\d.]+) req/s", output)
    assert rate is not None, output
    return Sent(float(rate[1]), *cpu_us)
