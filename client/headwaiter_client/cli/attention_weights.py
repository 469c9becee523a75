"""The command `attend`: what one token of a text looks at in one head."""

import argparse
from pathlib import Path

from headwaiter_client.cli.console import bars, console
from headwaiter_client.cli.heat_map import find_token, save_heat_map
from headwaiter_client.cli.shared_flags import Commands, add_command, connection
from headwaiter_client.client import Client


def add_to(commands: Commands) -> None:
    """Adds the command."""
    flags = add_command(commands, "attend", run, "show what one token of a text looks at")
    flags.add_argument("text", metavar="TEXT")
    flags.add_argument("--layer", type=int, default=0, help="counted from 0 (default: 0)")
    flags.add_argument("--head", type=int, default=0, help="counted from 0 (default: 0)")
    flags.add_argument("--query", required=True, help="the token that looks: its text, or its position from 0")
    flags.add_argument("--png", type=Path, metavar="FILE", help="draw the whole head as a heat map")


def run(arguments: argparse.Namespace) -> int:
    """Prints what the token looks at, and draws the whole head if asked to."""
    screen = console()
    with Client(**connection(arguments)) as client:
        attention = client.attend(arguments.text, layers=[arguments.layer], heads=[arguments.head])
    tokens, weights = attention.tokens, attention.weights[0, 0]
    if tokens is None:
        raise ValueError("the server's reply names no tokens")
    query = find_token(tokens, arguments.query)
    title = f"layer {arguments.layer}, head {arguments.head}"
    row = weights[query].tolist()
    screen.print(f"{title}: what {tokens[query]} (position {query}) looks at")
    screen.print(bars(tokens, [f"{weight:.4f}" for weight in row], row))
    if arguments.png:
        try:
            save_heat_map(tokens, weights, title, arguments.png)
        except ImportError:
            raise SystemExit("headwaiter-client: --png draws with matplotlib: pip install 'headwaiter[cli]'") from None
    return 0
