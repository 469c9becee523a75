"""What commands print with, and the bar that shows how far they are: rich, which only the extra `cli` installs."""

import sys
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BAR_CELLS = 40

_Item = TypeVar("_Item")


def console(*, stderr: bool = False) -> "Console":
    """Returns what prints.

    Raises:
        SystemExit: rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise SystemExit("headwaiter-client: this command prints with rich: pip install 'headwaiter[cli]'") from None
    return Console(highlight=False, markup=False, emoji=False, stderr=stderr)


def bars(labels: Sequence[str], figures: Sequence[str], values: Sequence[float]) -> "Table":
    """Draws a line for each label, its figure and its value as a bar, the longest for the largest."""
    from rich.bar import Bar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for label, figure, value in zip(labels, figures, values, strict=True):
        table.add_row(Text(label), figure, Bar(max(values), 0, value, width=_BAR_CELLS))
    return table


def tracked(items: Iterable[_Item], total: int, done: int) -> Generator[_Item, None, None]:
    """Yields items; a bar on a terminal shows how many there were, how many come in a second, and the time left.

    Args:
        items: those that are to come.
        total: how many there are in all.
        done: how many had come before.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        "Encoding",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}/s"),
        TimeRemainingColumn(),
    )
    quiet = not sys.stderr.isatty()
    started_s = time.perf_counter()
    with Progress(*columns, console=console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=total, completed=done, rate="-")
        for count, item in enumerate(items, start=1):
            yield item
            rate_s = count / (time.perf_counter() - started_s)
            bar.update(task, completed=done + count, rate=f"{rate_s:,.0f}")
