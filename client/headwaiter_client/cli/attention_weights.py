"""The subcommand `attend`: show the attention weights of one token in one head."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from headwaiter_client.cli.console import INSTALL_EXTRA, bar_chart, console
from headwaiter_client.cli.heat_map import save_heat_map
from headwaiter_client.cli.shared_flags import Commands, add_command, add_model_flag, client_arguments, whole_number
from headwaiter_client.client import Client

# Marks that tokenizers put before a token: WordPiece inside a word, SentencePiece and byte-level BPE at its start.
_TOKEN_MARKS = ("##", "▁", "Ġ")


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    flags = add_command(commands, "attend", run, "show how strongly one token of a text attends to each token")
    flags.add_argument("text", metavar="TEXT", help="the text to encode")
    add_model_flag(flags)
    flags.add_argument("--layer", type=whole_number, default=0, help="layer, counted from 0 (default: 0)")
    flags.add_argument("--head", type=whole_number, default=0, help="attention head, counted from 0 (default: 0)")
    flags.add_argument("--query", required=True, help="the query token: its text, or its position counted from 0")
    flags.add_argument("--png", type=Path, metavar="FILE", help="also draw the weights of all tokens as a heat map")


def run(arguments: argparse.Namespace) -> int:
    """Print the attention weights of the query token, and draw those of the whole head if `--png` is set."""
    screen = console()
    with Client(**client_arguments(arguments)) as client:
        attention = client.attend(
            arguments.text, layers=[arguments.layer], heads=[arguments.head], model=arguments.model
        )
    tokens, weights = attention.tokens, attention.weights[0, 0]
    query = find_token(tokens, arguments.query)
    title = f"layer {arguments.layer}, head {arguments.head}"
    row = weights[query].tolist()
    screen.print(f"{title}: attention weights of the token {tokens[query]} (position {query})")
    screen.print(bar_chart(tokens, [f"{weight:.4f}" for weight in row], row))
    if arguments.png:
        try:
            save_heat_map(tokens, weights, title, arguments.png)
        except ImportError:
            raise SystemExit(f"headwaiter-client: --png needs matplotlib: {INSTALL_EXTRA}") from None
    return 0


def find_token(tokens: Sequence[str], query: str) -> int:
    """Return the position of a query token.

    Args:
        tokens: the tokens of the text.
        query: a token, or the number of a position. The tokenizer's mark and upper or lower case do not matter.

    Raises:
        ValueError: no token matches; the message lists the tokens.
    """
    for normalize in (str, _without_mark, lambda token: _without_mark(token).casefold()):
        normalized = [normalize(token) for token in tokens]
        if normalize(query) in normalized:
            return normalized.index(normalize(query))
    if query.isdecimal() and int(query) < len(tokens):
        return int(query)
    listed = ", ".join(f"{position} {token}" for position, token in enumerate(tokens))
    raise ValueError(f"--query {query!r} is not a token of the text: use one of these positions or tokens: {listed}")


def _without_mark(token: str) -> str:
    """Return a token without the tokenizer's mark; a token that is only a mark stays as it is."""
    for mark in _TOKEN_MARKS:
        if token.startswith(mark) and token != mark:
            return token.removeprefix(mark)
    return token
