"""Draw docs/pictures/packed-batch.svg: the same sequences in a padded batch and in a packed batch.

Run as `python docs/pictures/draw_packed_batch.py`. Every number in the picture follows from LENGTHS.
"""

from itertools import accumulate
from pathlib import Path

PICTURE = Path(__file__).with_name("packed-batch.svg")
LENGTHS = (3, 9, 5, 2, 12, 4)

# One colour a sequence, from the palette of Okabe and Ito, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
PADDING, TEXT, MUTED = "#e4e4e7", "#1f2328", "#59636e"
CELL, GAP, LEFT = 20, 2, 28
STEP = CELL + GAP
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def svg() -> str:
    """Return the picture as SVG text."""
    sequences, tokens, longest = len(LENGTHS), sum(LENGTHS), max(LENGTHS)
    cells = sequences * longest
    starts = (0, *accumulate(LENGTHS))
    width = 2 * LEFT + tokens * STEP
    grid_top = 64
    packed_top = grid_top + sequences * STEP + 64
    height = packed_top + CELL + 66
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" role="img" aria-labelledby="title">',
        f'<title id="title">Padded: {cells} cells, {cells - tokens} of them wasted. Packed: {tokens} cells.</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#d1d9e0"/>',
        _text(LEFT, 38, "Padded batch", size=17, weight=600),
    ]
    for row, length in enumerate(LENGTHS):
        y = grid_top + row * STEP
        parts += [
            _cell(LEFT + column * STEP, y, COLOURS[row] if column < length else PADDING) for column in range(longest)
        ]
    notes = [
        f"{sequences} sequences × {longest} tokens (the longest) = {cells} cells",
        f"{tokens} cells hold tokens",
        f"{cells - tokens} cells hold padding (grey), {(cells - tokens) / cells:.0%} of the batch",
    ]
    beside = LEFT + longest * STEP + 32
    parts += [_text(beside, grid_top + 34 + 30 * line, note) for line, note in enumerate(notes)]
    parts.append(_text(LEFT, packed_top - 18, "Packed batch", size=17, weight=600))
    parts.append(_text(LEFT + 126, packed_top - 18, f"the same sequences end to end: {tokens} cells, 0 wasted"))
    for row, length in enumerate(LENGTHS):
        first = starts[row]
        parts += [_cell(LEFT + column * STEP, packed_top, COLOURS[row]) for column in range(first, first + length)]
    for start in starts:
        x = LEFT + start * STEP - GAP / 2
        parts.append(f'<path d="M{x:g} {packed_top + CELL + 3}v7" stroke="{MUTED}"/>')
        parts.append(_text(x, packed_top + CELL + 24, str(start), size=12, colour=MUTED, anchor="middle"))
    parts.append(
        _text(
            LEFT,
            height - 18,
            "attention finds each sequence by the offset of its first token",
            size=12,
            colour=MUTED,
        )
    )
    return "\n".join([*parts, "</svg>", ""])


def _cell(x: int, y: int, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, size: int = 15, weight: int = 400, colour: str = TEXT, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{text}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
