"""The subcommand `playground`: show a server's models in the browser. It runs without the extra `cli`."""

import argparse
from contextlib import suppress

from google.protobuf.message import Message

from headwaiter_client.calls import steps
from headwaiter_client.cli.page_server import PageServer
from headwaiter_client.cli.shared_flags import Commands, add_command, client_arguments
from headwaiter_client.client import Client


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    flags = add_command(commands, "playground", run, "serve the playground page on this machine, for a remote server")
    flags.add_argument("--port", type=int, default=8000, help="port of the page (default: 8000); 0 takes a free port")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    with Client(**client_arguments(arguments)) as client:

        def call(method: str, request: Message, reply_class: type[Message]) -> Message:
            # The public methods of the client return results; the page needs the replies themselves.
            return client._run(steps.call_method(method, request, reply_class, arguments.timeout_s))  # noqa: SLF001

        with PageServer(call, arguments.port) as server:
            print(f"playground of {arguments.address}: {server.url} (stop with Ctrl-C)", flush=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
    return 0
