"""The flags that several subcommands share, and the flag to which an error belongs."""

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.transport.connection import TlsConfig
from headwaiter_proto.rules.errors import DeadlineExceeded, InvalidInput, ModelNotFound, Unauthenticated

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # It has no public name.

_TLS_VARIABLE = "HEADWAITER_CLIENT_TLS"

# The client and the server name arguments and fields in their errors.
_BY_FIELD = {
    "texts.prompt": "--prompt",
    "prompt": "--prompt",
    "output.dimensions": "--dimensions",
    "layers": "--layer",
    "heads": "--head",
}
_BY_CLASS: dict[type[Exception], str] = {DeadlineExceeded: "--timeout-s", Unauthenticated: "--token-file"}


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, timeout_s: float = 30.0
) -> argparse.ArgumentParser:
    """Add a subcommand with the connection flags, each of which can also be set by an environment variable."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run)
    add = partial(add_connection_flag, parser)
    add("--address", str, "localhost:50051", "host:port of the server; separate several replicas with commas")
    add("--timeout-s", partial(positive_number, what="seconds"), timeout_s, "seconds to wait for an answer")
    add("--token-file", Path, None, "file with the bearer token")
    parser.add_argument(
        "--tls",
        action="store_true",
        default=os.environ.get(_TLS_VARIABLE, "") not in ("", "0"),
        help=f"connect with TLS and trust the public certificate authorities (or {_TLS_VARIABLE}=1)",
    )
    add("--tls-ca", Path, None, "file of certificates to trust instead of the public ones; any --tls flag turns TLS on")
    add("--tls-cert", Path, None, "file with the client's certificate chain")
    add("--tls-key", Path, None, "file with the private key of --tls-cert")
    return parser


def add_connection_flag(
    parser: argparse.ArgumentParser, flag: str, convert: Callable[[str], object], default: object, summary: str
) -> None:
    """Add a flag that can also be set by an environment variable."""
    # The prefix differs from that of the server's variables: on a host that runs both, their TLS files differ.
    variable = "HEADWAITER_CLIENT_" + flag.strip("-").replace("-", "_").upper()
    # An empty variable counts as not set, because Docker Compose passes unset variables on as empty ones.
    value = os.environ.get(variable) or default
    parser.add_argument(
        flag, type=convert, default=value, help=f"{summary} (or {variable}; default: {default or 'none'})"
    )


def client_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `Client` and `AsyncClient`.

    Raises:
        OSError: the token file cannot be read.
        ValueError: one of --tls-cert and --tls-key is set without the other.
    """
    files = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    addresses = [address.strip() for address in arguments.address.split(",")]
    return {
        "address": addresses if len(addresses) > 1 else addresses[0],
        "token": arguments.token_file.read_text("utf-8-sig").strip() if arguments.token_file else None,
        "tls": TlsConfig(*files) if arguments.tls or any(files) else None,
        "timeout_s": arguments.timeout_s,
    }


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names one of the server's models."""
    parser.add_argument(
        "--model", default="", metavar="NAME", help="name of the model (default: the server's only or default model)"
    )


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a file of texts, and the flags that say how to encode the texts."""
    add_model_flag(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="file of texts, one per line in UTF-8 unless --field or --column is set; - reads standard input",
    )
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--field", metavar="NAME", help="read FILE as JSON Lines; the texts are in this field")
    layout.add_argument("--column", metavar="NAME", help="read FILE as parquet; the texts are in this column")
    parser.add_argument(
        "--prompt", default="", metavar="NAME", help="name of the model's prompt to put before each text"
    )
    parser.add_argument(
        "--truncation",
        choices=("error", "left", "right"),
        default="error",
        help="refuse a text that is too long (error, the default), or cut it on the left or on the right",
    )


def text_options(arguments: argparse.Namespace) -> RequestOptions:
    """Return the request options that the flags of `add_text_flags` set."""
    return {"model": arguments.model, "prompt": arguments.prompt, "truncation": arguments.truncation}


def whole_number(text: str, least: int = 0) -> int:
    """Return a whole number.

    Raises:
        ArgumentTypeError: the text is not a whole number, or the number is below `least`.
    """
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


positive_int = partial(whole_number, least=1)


def positive_number(text: str, what: str) -> float:
    """Return a number; `what` says what it counts.

    Raises:
        ArgumentTypeError: the text is not a finite number above 0.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of {what} above 0")
    return number


def with_flag(error: Exception, model: str = "--model") -> str:
    """Return the message of an error, after the flag to which it belongs; `model` is the argument for a model."""
    message = str(error)
    flag = _BY_CLASS.get(type(error))
    if isinstance(error, InvalidInput | ModelNotFound) and error.field:
        flag = model if error.field == "model" else _BY_FIELD.get(error.field)
        if flag and message.startswith((f"{error.field} ", f"{error.field}: ")):
            return flag + message.removeprefix(error.field)
    return f"{flag}: {message}" if flag else message
