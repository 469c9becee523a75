"""Output on a terminal: text, bar charts and a progress bar, with rich, which the extra `cli` installs."""

import sys
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BAR_CHARACTERS = 40

_Item = TypeVar("_Item")


def console(*, stderr: bool = False) -> "Console":
    """Return a console that prints text as it is, on standard output or standard error.

    Raises:
        SystemExit: rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise SystemExit("headwaiter-client: this command needs rich: pip install 'headwaiter[cli]'") from None
    return Console(highlight=False, markup=False, emoji=False, stderr=stderr)


def bar_chart(labels: Sequence[str], numbers: Sequence[str], values: Sequence[float]) -> "Table":
    """Return one line per label with its number and its value as a bar; the largest value has the longest bar."""
    from rich.bar import Bar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for label, number, value in zip(labels, numbers, values, strict=True):
        table.add_row(Text(label), number, Bar(max(values), 0, value, width=_BAR_CHARACTERS))
    return table


def with_progress_bar(items: Iterable[_Item], total: int, done: int) -> Generator[_Item, None, None]:
    """Yield items. On a terminal, show a bar with the number of items, the items per second and the time left.

    Args:
        items: the remaining items.
        total: number of all items, those of earlier runs included.
        done: number of items that earlier runs have done.
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
            rate_per_s = count / (time.perf_counter() - started_s)
            bar.update(task, completed=done + count, rate=f"{rate_per_s:,.0f}")
