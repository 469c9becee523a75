"""Draw the attention weights of one head as a heat map."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

_INCHES_PER_TOKEN = 0.25
# A larger picture would take more than 400 MB of memory. With more tokens, the squares and labels shrink instead.
_MAX_INCHES = 30.0
_MARGIN_INCHES = 2.0
_LABEL_POINTS = 10.0


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
