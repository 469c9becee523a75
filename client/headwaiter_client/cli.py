"""The command `headwaiter-client`: encode a file, show attention, ask whether a server serves, list its models."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_client._attention_view import bars, find_token, save_heat_map
from headwaiter_client._connection import TlsConfig
from headwaiter_client.client import Client
from headwaiter_client.errors import HeadwaiterError
from headwaiter_proto import encoder_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; a failure prints one sentence and returns 1."""
    arguments = _parser().parse_args(argv)
    command: Callable[[Client, argparse.Namespace], int] = arguments.command
    try:
        with _connect(arguments) as client:
            return command(client, arguments)
    except (HeadwaiterError, OSError, ValueError) as error:
        print(f"headwaiter-client: {error}", file=sys.stderr)
        return 1


def encode(client: Client, arguments: argparse.Namespace) -> int:
    """Encodes a file of one text a line and saves the pooled vectors [lines, width]."""
    console = _console()
    source = "standard input" if arguments.file == "-" else arguments.file
    lines = _read_lines(arguments.file)
    _check_lines(lines, source)
    started_s = time.perf_counter()
    vectors, tokens = _encode_lines(client, lines, source)
    seconds = time.perf_counter() - started_s
    with Path(arguments.output).open("wb") as file:
        np.save(file, vectors)
    console.print(f"{len(lines):,} sentences, {tokens:,} tokens, {seconds:.3f} s")
    return 0


def attend(client: Client, arguments: argparse.Namespace) -> int:
    """Prints what one token of a text looks at in one head of one layer, and draws the whole head if asked to."""
    console = _console()
    attention = client.attend(arguments.text, layers=[arguments.layer], heads=[arguments.head])
    tokens, weights = attention.tokens, attention.weights[0, 0]
    if tokens is None:
        raise ValueError("the server's reply names no tokens")
    query = find_token(tokens, arguments.query)
    title = f"layer {arguments.layer}, head {arguments.head}"
    console.print(f"{title}: what {tokens[query]} (position {query}) looks at")
    console.print(bars(tokens, weights[query]))
    if arguments.png:
        try:
            save_heat_map(tokens, weights, title, arguments.png)
        except ImportError:
            raise SystemExit("headwaiter-client: --png draws with matplotlib: pip install 'headwaiter[cli]'") from None
    return 0


def probe(client: Client, arguments: argparse.Namespace) -> int:
    """Returns 0 when the server takes requests."""
    if client.is_serving():
        return 0
    print(f"headwaiter-client: the server at {arguments.address} does not take requests", file=sys.stderr)
    return 1


def models(client: Client, _arguments: argparse.Namespace) -> int:
    """Prints each model: how it runs, what it takes, and how far its answers are from PyTorch."""
    console = _console()
    from rich.table import Column, Table

    for ref in client.models():
        table = Table("model", Column(ref.name, overflow="fold"))
        for name, text in _description(client.model(ref.name)).items():
            table.add_row(name, text)
        console.print(table)
    return 0


def _encode_lines(client: Client, lines: Sequence[str], source: str) -> tuple[NDArray[Any], int]:
    """Returns the pooled vectors [lines, width] and how many tokens the lines have."""
    from rich.progress import Progress

    model = client.model()
    if not model.max_text_tokens:
        raise ValueError(f"the model {model.model.name} takes no texts")
    quiet = not sys.stderr.isatty()
    with Progress(console=_console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("Encoding", total=len(lines))
        try:
            encoding = client.encode(lines, progress=lambda done, _total: bar.update(task, completed=done))
        except HeadwaiterError as error:
            if error.sequence is None:
                raise
            line = f"line {error.sequence + 1} of {source}"
            sentence, places = re.subn(
                rf"texts\.values\[{error.sequence}\]|\bsequence {error.sequence}\b", lambda _: line, str(error)
            )
            raise HeadwaiterError(sentence if places else f"{line}: {sentence}") from error
    if encoding.pooled is None:
        raise ValueError(f"the model {encoding.model.name} has no pooled output")
    return encoding.pooled, int(encoding.lengths.sum())


def _description(model: pb.GetModelResponse) -> dict[str, str]:
    execution, limits, check = model.execution, model.limits, model.execution.self_check
    cost = execution.cost
    fallback = f" ({execution.fallback_reason})" if execution.fallback_reason else ""
    rows = {
        "digest": model.model.digest,
        "provider": execution.provider + fallback,
        "precision": pb.Precision.Name(execution.precision).removeprefix("PRECISION_").lower(),
        "sequence limit": f"{model.max_tokens:,} tokens",
        "request limit": f"{limits.max_sequences:,} sequences, {limits.max_tokens:,} tokens, "
        f"{limits.max_message_bytes:,} bytes",
        "self-check": f"{check.sequences} sequences: "
        f"pooled within {check.pooled_max_abs:.1e} ({check.pooled_max_relative:.1e} of the scale), "
        f"hidden within {check.hidden_max_abs:.1e} ({check.hidden_max_relative:.1e} of the scale), "
        f"cosine {check.min_cosine:.6f} or more, {check.mean_cosine:.6f} on average",
    }
    if cost.service_tokens_per_s:
        source = "remembered" if cost.remembered else "measured"
        rows["batches"] = (
            f"{execution.token_budget:,} tokens at most, {cost.service_tokens_per_s:,.0f} tokens/s: "
            f"{cost.launch_s * 1e3:.3g} ms, {cost.token_s * 1e6:.3g} µs a token, {cost.cell_s * 1e9:.3g} ns a cell "
            f"({source}, ±{cost.error_ratio:.1%})"
        )
    for graph in model.parity:
        if graph.graph == execution.graph and graph.HasField("same_nearest_neighbour"):
            rows["nearest neighbour"] = f"the one that fp32 finds, for {graph.same_nearest_neighbour:.1%} of sentences"
    return rows | {"text limit": f"{model.max_text_tokens:,} tokens"} if model.takes_texts else rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headwaiter-client", description="Calls a Headwaiter server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    flags = _add_command(commands, encode, "encode a file of one text a line and save the pooled vectors", timeout_s=30)
    flags.add_argument("file", metavar="FILE", help="the texts, in UTF-8; - for standard input")
    flags.add_argument("-o", "--output", required=True, metavar="OUT.npy", help="where to save the pooled vectors")
    flags = _add_command(commands, attend, "show what one token of a text looks at", timeout_s=30)
    flags.add_argument("text", metavar="TEXT")
    flags.add_argument("--layer", type=int, default=0, help="counted from 0 (default: 0)")
    flags.add_argument("--head", type=int, default=0, help="counted from 0 (default: 0)")
    flags.add_argument("--query", required=True, help="the token that looks: its text, or its position from 0")
    flags.add_argument("--png", type=Path, metavar="FILE", help="draw the whole head as a heat map")
    # A health check has to know soon.
    _add_command(commands, probe, "exit with 0 when the server takes requests, else 1", timeout_s=3)
    _add_command(commands, models, "describe the models of the server", timeout_s=30)
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    command: Callable[[Client, argparse.Namespace], int],
    summary: str,
    timeout_s: float,
) -> argparse.ArgumentParser:
    """Adds a command with the flags of its connection, each also an environment variable."""
    parser = commands.add_parser(command.__name__, help=summary, description=summary)
    parser.set_defaults(command=command)

    def add(flag: str, convert: Callable[[str], object], default: object, summary: str) -> None:
        # Not the server's own names: where both run, its certificate is not the caller's.
        variable = "HEADWAITER_CLIENT_" + flag.strip("-").replace("-", "_").upper()
        # A variable that is set but empty is what compose files make of one that is not set.
        value = os.environ.get(variable) or default
        parser.add_argument(
            flag, type=convert, default=value, help=f"{summary} (or {variable}; default: {default or 'none'})"
        )

    add("--address", str, "localhost:50051", "host:port of the server")
    add("--timeout-s", float, timeout_s, "seconds to wait for an answer")
    add("--token-file", Path, None, "file that holds the bearer token")
    add("--tls-ca", Path, None, "certificates to trust; any --tls flag turns TLS on")
    add("--tls-cert", Path, None, "the client's certificate chain")
    add("--tls-key", Path, None, "the private key of --tls-cert")
    return parser


def _connect(arguments: argparse.Namespace) -> Client:
    files = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    return Client(
        arguments.address,
        token=arguments.token_file.read_text().strip() if arguments.token_file else None,
        tls=TlsConfig(*files) if any(files) else None,
        timeout_s=arguments.timeout_s,
    )


def _console(*, stderr: bool = False) -> "Console":
    try:
        from rich.console import Console
    except ImportError:
        raise SystemExit("headwaiter-client: this command prints with rich: pip install 'headwaiter[cli]'") from None
    return Console(highlight=False, markup=False, stderr=stderr)


def _read_lines(file: str) -> list[str]:
    # Not what the locale makes of standard input: the texts are UTF-8 wherever they come from.
    text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode().replace("\r\n", "\n")
    # Not str.splitlines, which splits at form feeds and Unicode's separators too.
    *lines, last = text.split("\n")
    return [*lines, last] if last else lines


def _check_lines(lines: Sequence[str], source: str) -> None:
    if not lines:
        raise ValueError(f"{source} is empty: it needs one text a line")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(f"line {number} of {source} is empty: each line is a text")
