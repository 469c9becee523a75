"""Output on a terminal: text, bar charts and a progress bar, with rich, which the extra `cli` installs."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# What the guide to the command says.
INSTALL_EXTRA = "run pip install '.[cli]' in a clone of Headwaiter"

_BAR_CHARACTERS = 40


def console(*, stderr: bool = False) -> "Console":
    """Return a console that prints text as it is, on standard output or standard error.

    Raises:
        SystemExit: rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise SystemExit(f"headwaiter-client: this command needs rich: {INSTALL_EXTRA}") from None
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


class ProgressBar:
    """Shows how many items are done, and whether the command waits for the server.

    A terminal shows a bar with the number of items, the items per second and the time left; during a wait, also when
    it began and why. Without a terminal, standard error gets one line when a wait begins and one when it ends.

    Args:
        total: number of all items, those of earlier runs included.

    Attributes:
        done: number of items done, those of earlier runs included.
    """

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self.done = self._resumed = 0
        self._is_terminal = sys.stderr.isatty()
        self._started_s = time.perf_counter()
        self._waits_since_s: float | None = None
        self._bar = Progress(
            "Encoding",
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[wait]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console(stderr=True),
            transient=True,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("", total=total, rate="-", wait="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def resume(self, done: int) -> None:
        """Start from the items that an earlier run has done."""
        self.done = self._resumed = done
        self._started_s = time.perf_counter()
        self._bar.update(self._task, completed=done)

    def advance(self) -> None:
        """Show that one more item is done; the server has answered."""
        self.end_wait()
        self.done += 1
        rate_per_s = (self.done - self._resumed) / (time.perf_counter() - self._started_s)
        self._bar.update(self._task, completed=self.done, rate=f"{rate_per_s:,.0f}")

    def begin_wait(self, reason: str) -> None:
        """Show that the command waits for the server, and why; a wait in progress continues with the new reason."""
        if self._waits_since_s is None:
            self._waits_since_s = time.time()
            self._print_line(f"waiting for the server: {reason}")
        since = time.strftime("%H:%M:%S", time.localtime(self._waits_since_s))
        self._bar.update(self._task, wait=f"waiting for the server since {since}: {reason}")

    def end_wait(self) -> None:
        """Show that the server has answered."""
        if self._waits_since_s is not None:
            self._print_line(f"the server answers again after {time.time() - self._waits_since_s:.0f} s")
            self._waits_since_s = None
            self._bar.update(self._task, wait="")

    def _print_line(self, line: str) -> None:
        if not self._is_terminal:
            print(f"headwaiter-client: {line}", file=sys.stderr)
