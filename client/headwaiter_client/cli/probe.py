"""The command `probe`: whether a server takes requests. It needs no extra."""

import argparse
import sys

from headwaiter_client.calls import steps as _core
from headwaiter_client.cli.shared_flags import Commands, add_command, connection
from headwaiter_client.client import Client


def add_to(commands: Commands) -> None:
    """Adds the command."""
    # A health check has to know soon.
    add_command(commands, "probe", run, "exit with 0 when the server takes requests, else 1", timeout_s=3.0)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 when the server takes requests."""
    with Client(**connection(arguments)) as client:
        # Who probes by hand wants to know why not; programs that call `is_serving` do not.
        reason = client._run(_core.unready(arguments.timeout_s))  # noqa: SLF001
    if reason is not None:
        print(f"headwaiter-client: the server at {arguments.address} is not ready: {reason}", file=sys.stderr)
    return int(reason is not None)
