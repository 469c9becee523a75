"""Starts a server as a process of its own, for the demo, the benchmarks and the tests."""

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwaiter_client import Client, DeadlineExceeded, Unavailable
from testbed.minilm import command

_START_S = 120.0
_STOP_S = 40.0
_LOOK_EVERY_S = 0.1
# Below those that Linux gives the near end of a connection, such as the ones that look whether the server serves yet.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class Running:
    """A server that serves.

    Attributes:
        address: of gRPC.
        metrics_url: of its Prometheus metrics.
        process: the server.
    """

    address: str
    metrics_url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_server(
    bundle: Path,
    flags: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    program: Sequence[str] = (),
    log: BinaryIO | None = None,
    address: str = "",
) -> Iterator[Running]:
    """Start a server on a bundle, give it once it serves, and drain it in the end.

    Args:
        bundle: its folder.
        flags: more flags of the program.
        wrapper: a command to start it with, such as `taskset -c 0`.
        program: what takes a bundle, `--address` and `--metrics-port`, and serves; headwaiter-server if left out.
        log: a file for what it says; the caller's own standard error if left out.
        address: where to serve gRPC, such as that of a server that is gone; a free port if left out.

    Raises:
        RuntimeError: it does not serve.
    """
    address = address or f"127.0.0.1:{_free_port()}"
    metrics_port = _free_port()
    arguments = [*wrapper, *(program or [command("headwaiter-server")]), str(bundle)]
    arguments += ["--address", address, "--metrics-port", str(metrics_port), *flags]
    # What the caller's shell sets for a server of its own does not concern this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    with subprocess.Popen(arguments, env=environment, stderr=log) as server:
        try:
            _wait_until_serving(server, address)
            yield Running(address, f"http://127.0.0.1:{metrics_port}/metrics", server)
        finally:
            server.terminate()
            server.wait(_STOP_S)


def _wait_until_serving(server: subprocess.Popen[bytes], address: str) -> None:
    end_s = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < end_s:
        # A channel that failed to connect waits longer and longer to try again, so each look takes a new one.
        with Client(address) as client:
            try:
                if client.is_serving(timeout_s=1.0):
                    return
            except (DeadlineExceeded, Unavailable):
                pass
        time.sleep(_LOOK_EVERY_S)
    raise RuntimeError("the server does not serve; what it says above tells why")


def _free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
