"""The subcommand `attend`: show the attention weights of one token in one head."""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headwaiter_client.cli.console import INSTALL_EXTRA, bar_chart, console
from headwaiter_client.cli.shared_flags import Commands, add_command, add_model_flag, client_arguments, whole_number
from headwaiter_client.client import Client

# Marks that tokenizers put before a token: WordPiece inside a word, SentencePiece and byte-level BPE at its start.
_TOKEN_MARKS = ("##", "▁", "Ġ")
_INCHES_PER_TOKEN = 0.25
# A larger picture would take more than 400 MB of memory. With more tokens, the squares and labels shrink instead.
_MAX_INCHES = 30.0
_MARGIN_INCHES = 2.0
_LABEL_POINTS = 10.0


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


def save_heat_map(tokens: Sequence[str], weights: NDArray[Any], title: str, path: Path) -> None:
    """Save the attention weights [n, n] of one head as a PNG, with one row per query token.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    # A Figure made without pyplot needs no window system.
    from matplotlib.figure import Figure

    inches = min(max(4.0, len(tokens) * _INCHES_PER_TOKEN + _MARGIN_INCHES), _MAX_INCHES)
    label_points = min(_LABEL_POINTS, 60 * (inches - _MARGIN_INCHES) / len(tokens))
    figure = Figure(figsize=(inches, inches), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="key token", ylabel="query token")
    image = axes.imshow(weights, vmin=0.0)
    positions = range(len(tokens))
    # Otherwise, matplotlib would read two dollar signs in a token as a formula (parse_math).
    axes.set_xticks(positions, tokens, rotation=90, fontsize=label_points, parse_math=False)
    axes.set_yticks(positions, tokens, fontsize=label_points, parse_math=False)
    figure.colorbar(image, shrink=0.8)
    with warnings.catch_warnings():
        # The font draws a box for a character that it lacks; the warning adds nothing.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(path, format="png")
