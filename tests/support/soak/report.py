"""Tables in plain text, and the promises that a run has broken."""

from collections.abc import Iterable, Mapping, Sequence

_MOST_EXAMPLES = 5
_LONGEST_EXAMPLE = 2000


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with two spaces between the columns."""
    lines = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])


def counted(counts: Mapping[str, int]) -> str:
    """Return counts in one line, the largest first."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def examples(name: str, found: Sequence[str]) -> list[str]:
    """Return the first descriptions of a broken promise, and how many there are."""
    shown = [f"{name}: {each[:_LONGEST_EXAMPLE]}" for each in found[:_MOST_EXAMPLES]]
    more = len(found) - len(shown)
    return shown + [f"{name}: {more} more"] * (more > 0)
