"""Starts a server as a separate process, for the demo, the benchmarks and the tests."""

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
from testbed.minilm import command_path

# The environment variable with the number of front ends of servers whose flags do not say it.
FRONT_ENDS = "TESTED_FRONT_ENDS"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 40.0
_POLL_INTERVAL_S = 0.1
# These ports are below Linux' range of ephemeral ports, from which the connections of health checks take their ports.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class RunningServer:
    """A server process that answers requests.

    Attributes:
        address: HOST:PORT of gRPC.
        metrics_url: address of the Prometheus metrics page.
        process: the server process.
    """

    address: str
    metrics_url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_server(
    bundle: Path | None,
    flags: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    program: Sequence[str] = (),
    log: BinaryIO | None = None,
    address: str = "",
    *,
    waits: bool = True,
) -> Iterator[RunningServer]:
    """Start a server on a bundle, yield the server when it answers requests, and drain it at the end of the block.

    Args:
        bundle: the bundle folder; None if `flags` name a folder of models.
        flags: additional flags of the program.
        wrapper: a command that starts the program, for example `taskset -c 0`.
        program: a command that takes a bundle, `--address` and `--metrics-port`; headwaiter-server if empty.
        log: a file for the program's standard error; if None, the caller's own standard error.
        address: HOST:PORT for gRPC, for example to replace a stopped server; if empty, a free local port.
        waits: whether to yield the server only when it answers requests.

    Raises:
        RuntimeError: the server is not serving after 120 seconds, or has exited.
    """
    address = address or f"127.0.0.1:{free_port()}"
    metrics_port = free_port()
    arguments = [*wrapper, *(program or [command_path("headwaiter-server")]), *([str(bundle)] if bundle else [])]
    arguments += ["--address", address, "--metrics-port", str(metrics_port), *flags]
    # Environment variables that the caller has set for another server must not change this server.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    environment["HEADWAITER_FRONT_ENDS"] = os.environ.get(FRONT_ENDS, "0")
    with subprocess.Popen(arguments, env=environment, stderr=log) as server:
        try:
            if waits:
                _wait_until_serving(server, address)
            yield RunningServer(address, f"http://127.0.0.1:{metrics_port}/metrics", server)
        finally:
            server.terminate()
            server.wait(_STOP_TIMEOUT_S)


def _wait_until_serving(server: subprocess.Popen[bytes], address: str) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < end_s:
        # A gRPC channel waits longer after each failed connection, so each check opens a new channel.
        with Client(address) as client:
            try:
                if client.is_serving(timeout_s=1.0):
                    return
            except (DeadlineExceeded, Unavailable):
                pass
        time.sleep(_POLL_INTERVAL_S)
    problem = "exited" if server.poll() is not None else f"is not serving after {_START_TIMEOUT_S:.0f} s"
    raise RuntimeError(f"the server at {address} {problem}: read the server's log for the cause")


def free_port() -> int:
    """Return a port that no process of this host uses now."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
