"""Servers on the double."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.server_process import RunningServer, running_server
from tests.support.cuda_double.environment import Double


@dataclass(frozen=True)
class ServerOnDouble:
    """A server on the double.

    Attributes:
        log: what the server writes to its standard error.
    """

    server: RunningServer
    double: Double
    log: Path


@contextmanager
def serving(program: str, bundle: Path, folder: Path, double: Double, *flags: str) -> Iterator[ServerOnDouble]:
    """Run a server, which is a module of this folder, with its log in `folder`."""
    log = folder / "server.log"
    wrapper = ["env", *(f"{name}={value}" for name, value in double.environment.items())]
    command = [sys.executable, "-m", f"tests.support.cuda_double.{program}"]
    with (
        log.open("wb") as errors,
        running_server(bundle, ["--provider", "cuda", *flags], wrapper, command, errors) as server,
    ):
        yield ServerOnDouble(server, double, log)
