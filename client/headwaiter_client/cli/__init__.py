"""The command `headwaiter-client`: one module per subcommand, and the modules that they share."""

import argparse
import sys
from collections.abc import Callable, Sequence

from headwaiter_client.cli import attend, bench, encode, models, playground, probe, similar, top
from headwaiter_client.cli.shared_flags import with_flag
from headwaiter_proto.command_line import CommandParser
from headwaiter_proto.rules.errors import HeadwaiterError

_INTERRUPTED = 130  # The exit code that shells report for a command ended by Ctrl-C.


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code. Print a failure as one line on standard error, and return 1."""
    parser = CommandParser(prog="headwaiter-client", description="Send requests to a Headwaiter server.")
    parser.add_version()
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (encode, similar, attend, bench, models, playground, probe, top):
        command.add_to(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except (KeyboardInterrupt, HeadwaiterError, OSError, ValueError) as error:
        facts = ["headwaiter-client", _message(error, arguments), *getattr(error, "__notes__", [])]
        print(": ".join(facts), file=sys.stderr)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _message(error: Exception | KeyboardInterrupt, arguments: argparse.Namespace) -> str:
    """Return the message of an error; for a file error, the file and the reason without the errno number."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return with_flag(error, "--model" if "model" in arguments else "NAME")
