"""The command `headwaiter-client`: a module for each of its commands, and what they share."""

import argparse
import sys
from collections.abc import Callable, Sequence

from headwaiter_client.cli import attention_weights, bench, encode, models, probe, similar
from headwaiter_client.errors import HeadwaiterError

_INTERRUPTED = 130  # As a shell says of a command that Ctrl-C ended.


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; a failure prints one sentence and returns 1."""
    parser = argparse.ArgumentParser(prog="headwaiter-client", description="Calls a Headwaiter server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (encode, similar, attention_weights, bench, models, probe):
        command.add_to(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt as interruption:
        print(": ".join(["headwaiter-client: interrupted", *map(str, interruption.args)]), file=sys.stderr)
        return _INTERRUPTED
    except (HeadwaiterError, OSError, ValueError) as error:
        print(f"headwaiter-client: {_sentence(error)}", file=sys.stderr)
        return 1


def _sentence(error: Exception) -> str:
    """Returns what an error says, without the number that Python puts before what the system says of a file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
