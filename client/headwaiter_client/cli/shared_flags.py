"""The flags that commands share, and what they stand for."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.transport.connection import TlsConfig

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # It has no other name.

_TLS_VARIABLE = "HEADWAITER_CLIENT_TLS"


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, timeout_s: float = 30.0
) -> argparse.ArgumentParser:
    """Adds a command with the flags of its connection, each also an environment variable."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run)

    def add(flag: str, convert: Callable[[str], object], default: object, summary: str) -> None:
        # Not the server's own names: where both run, its certificate is not the caller's.
        variable = "HEADWAITER_CLIENT_" + flag.strip("-").replace("-", "_").upper()
        # A variable that is set but empty is what compose files make of one that is not set.
        value = os.environ.get(variable) or default
        parser.add_argument(
            flag, type=convert, default=value, help=f"{summary} (or {variable}; default: {default or 'none'})"
        )

    add("--address", str, "localhost:50051", "host:port of the server; of several replicas, with commas between")
    add("--timeout-s", float, timeout_s, "seconds to wait for an answer")
    add("--token-file", Path, None, "file that holds the bearer token")
    parser.add_argument(
        "--tls",
        action="store_true",
        default=os.environ.get(_TLS_VARIABLE, "") not in ("", "0"),
        help=f"talk TLS, trusting the public authorities (or {_TLS_VARIABLE}=1)",
    )
    add("--tls-ca", Path, None, "certificates to trust in their place; any --tls flag turns TLS on")
    add("--tls-cert", Path, None, "the client's certificate chain")
    add("--tls-key", Path, None, "the private key of --tls-cert")
    return parser


def connection(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what a client of either kind is made with.

    Raises:
        OSError: the token's file cannot be read.
        ValueError: a TLS flag came without another that it needs.
    """
    files = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    addresses = [address.strip() for address in arguments.address.split(",")]
    return {
        "address": addresses if len(addresses) > 1 else addresses[0],
        "token": arguments.token_file.read_text().strip() if arguments.token_file else None,
        "tls": TlsConfig(*files) if arguments.tls or any(files) else None,
        "timeout_s": arguments.timeout_s,
    }


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a file of texts, and of what the server shall do with them."""
    parser.add_argument(
        "file", metavar="FILE", help="the texts, one a line, in UTF-8, or as the flags say; - for standard input"
    )
    held = parser.add_mutually_exclusive_group()
    held.add_argument("--field", metavar="NAME", help="FILE is JSON Lines: the field of each that is the text")
    held.add_argument("--column", metavar="NAME", help="FILE is parquet: the column of the texts")
    parser.add_argument("--prompt", default="", metavar="NAME", help="the model's prompt to put before each text")
    parser.add_argument(
        "--truncation",
        choices=("error", "left", "right"),
        default="error",
        help="what becomes of a text that is too long: an error (default), or where it is cut",
    )


def text_options(arguments: argparse.Namespace) -> RequestOptions:
    """Returns what the flags say that the server shall do with texts."""
    return {"prompt": arguments.prompt, "truncation": arguments.truncation}


def count(text: str) -> int:
    """Reads a number of things.

    Raises:
        ArgumentTypeError: it is none, or below 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)
