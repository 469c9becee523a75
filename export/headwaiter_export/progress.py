"""The output of the command: a line for each result, and on a terminal what runs now and for how long."""

from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn


class Progress:
    """Prints results above a line that shows the current step; only a terminal has this line."""

    def __init__(self) -> None:
        console = Console(soft_wrap=True, markup=False, highlight=False, emoji=False)
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def report(self, line: str) -> None:
        """Print a line."""
        self._bar.console.print(line)

    def step(self, what: str) -> None:
        """Show what begins now."""
        self._bar.reset(self._task, description=what)
