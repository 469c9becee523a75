"""The subcommand `probe`: check whether a server accepts requests. It runs without the extra `cli`."""

import argparse
import sys

from headwaiter_client.calls import steps
from headwaiter_client.cli.shared_flags import Commands, add_command, client_arguments
from headwaiter_client.client import Client


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    # A health check must fail fast.
    add_command(commands, "probe", run, "exit with 0 if the server accepts requests, else with 1", timeout_s=3.0)


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if the server accepts requests; otherwise print the reason and return 1."""
    with Client(**client_arguments(arguments)) as client:
        # The public method `is_serving` returns no reason to print.
        reason = client.run(steps.not_ready_reason(arguments.timeout_s))
    if reason is not None:
        print(f"headwaiter-client: the server at {arguments.address} is not ready: {reason}", file=sys.stderr)
    return int(reason is not None)
