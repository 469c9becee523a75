"""The subcommand `playground`: show a server's models in the browser. It runs without the extra `cli`."""

import argparse
from contextlib import suppress
from functools import lru_cache

from google.protobuf.message import Message

from headwaiter_client.calls import steps
from headwaiter_client.cli.page_server import Caller, PageServer
from headwaiter_client.cli.shared_flags import Commands, add_command, client_arguments
from headwaiter_client.client import Client
from headwaiter_proto.rules.errors import Unauthenticated

_HIGHEST_PORT = 65_535
# The clients of the tokens that were typed last. The connection of a forgotten client closes after its last call.
_MAX_TYPED_TOKENS = 4


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    flags = add_command(commands, "playground", run, "serve the playground page on this machine, for a remote server")
    flags.add_argument("--port", type=_port, default=8000, help="port of the page (default: 8000); 0 takes a free port")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C.

    Raises:
        ValueError: the port is taken.
    """
    options = client_arguments(arguments)

    def caller(client: Client) -> Caller:
        def call(method: str, request: Message, reply_class: type[Message]) -> Message:
            # The public methods of the client return results; the page needs the replies themselves.
            return client.run(steps.call_method(method, request, reply_class, arguments.timeout_s))

        return call

    @lru_cache(_MAX_TYPED_TOKENS)
    def call_with(authorization: str) -> Caller:
        try:
            return caller(Client(**{**options, "token": authorization.removeprefix("Bearer ")}))
        except ValueError:
            raise Unauthenticated("the token holds a character that is not allowed: type the token again") from None

    with Client(**options) as client:
        try:
            page_server = PageServer(caller(client), arguments.port, call_with)
        except OSError as error:
            raise ValueError(
                f"cannot serve the page on port {arguments.port} ({error.strerror}): choose another port with --port"
            ) from None
        with page_server as server:
            print(f"playground of {arguments.address}: {server.url} (stop with Ctrl-C)", flush=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(_HIGHEST_PORT)) or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {_HIGHEST_PORT}")
    return int(text)
