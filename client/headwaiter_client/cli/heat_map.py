"""Finds the token that looks, and draws what a whole head looks at."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

# What tokenizers put before a token: WordPiece inside a word, SentencePiece and byte-level BPE where one starts.
_MARKS = ("##", "▁", "Ġ")
_INCHES_PER_TOKEN = 0.25
# Beyond it, where drawing takes some 400 MB, the squares get smaller, and so do the labels.
_MOST_INCHES = 30.0
_MARGIN_INCHES = 2.0
_LABEL_POINTS = 10.0


def find_token(tokens: Sequence[str], query: str) -> int:
    """Returns the position of a query: a token, with or without its mark and in any case, or a position's number.

    Raises:
        ValueError: there is none; the message lists the tokens.
    """
    for spell in (str, _bare, lambda token: _bare(token).casefold()):
        spelled = [spell(token) for token in tokens]
        if spell(query) in spelled:
            return spelled.index(spell(query))
    if query.isdecimal() and int(query) < len(tokens):
        return int(query)
    listed = ", ".join(f"{position} {token}" for position, token in enumerate(tokens))
    raise ValueError(f"--query {query!r} is no token of the text and no position in it: the tokens are {listed}")


def save_heat_map(tokens: Sequence[str], weights: NDArray[Any], title: str, path: Path) -> None:
    """Writes the weights [n, n] of one head as a PNG, queries from top to bottom.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    # Without pyplot there is no window, and nothing to choose a backend for.
    from matplotlib.figure import Figure

    inches = min(max(4.0, len(tokens) * _INCHES_PER_TOKEN + _MARGIN_INCHES), _MOST_INCHES)
    label_points = min(_LABEL_POINTS, 60 * (inches - _MARGIN_INCHES) / len(tokens))
    figure = Figure(figsize=(inches, inches), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="looked at", ylabel="looking")
    image = axes.imshow(weights, vmin=0.0)
    positions = range(len(tokens))
    # Two dollar signs are no formula here.
    axes.set_xticks(positions, tokens, rotation=90, fontsize=label_points, parse_math=False)
    axes.set_yticks(positions, tokens, fontsize=label_points, parse_math=False)
    figure.colorbar(image, shrink=0.8)
    with warnings.catch_warnings():
        # A character that the font lacks becomes a box.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(path, format="png")


def _bare(token: str) -> str:
    """Returns a token without its mark, unless it is nothing else."""
    for mark in _MARKS:
        if token.startswith(mark) and token != mark:
            return token.removeprefix(mark)
    return token
