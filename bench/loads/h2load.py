"""Sends unary gRPC calls with h2load, part of nghttp2, whose calls cost far less CPU time than those of a server."""

import re
import subprocess
import tempfile
from pathlib import Path


def send_calls(address: str, method: str, message: bytes, calls: int, connections: int, streams: int) -> float:
    """Send one message again and again, and return the calls/s.

    h2load sees only the status of HTTP, which is 200 for calls that fail, too: compare the server's own counts.

    Args:
        address: HOST:PORT of the server.
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
        command = [*load, *headers, f"http://{address}{method}"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f" {calls} succeeded, 0 failed" in output, output
    rate = re.search(r"([\d.]+) req/s", output)
    assert rate is not None, output
    return float(rate[1])
