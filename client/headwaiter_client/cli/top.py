"""The subcommand `top`: a live view of what a server does, from its metrics page."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http.client import HTTPException
from itertools import chain
from math import isnan, nan
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from headwaiter_client.cli.activity import Reading, ServerActivity, VersionActivity, activity, printable, read_page
from headwaiter_client.cli.console import INSTALL_EXTRA, console
from headwaiter_client.cli.shared_flags import Commands, add_connection_flag, positive_number
from headwaiter_proto.rules.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

DEFAULT_INTERVAL_S = 2.0
_DEFAULT_URL = "http://localhost:9464/metrics"
_TIMEOUT_S = 5.0
# The page of a thousand models has less.
_MAX_PAGE_BYTES = 64 << 20
# Without a terminal, a program reads the view: wide enough for all columns, names of 128 characters, and long lines.
_WIDTH_WITHOUT_TERMINAL = 2000
# The name of a model takes at most this share of the width.
_NAME_SHARE = 1 / 5
_PROBLEM = "bold red"


class _Column(NamedTuple):
    """A column of the table of models.

    Attributes:
        heading: its heading.
        text: returns its text for a version.
        rank: the column with the highest rank is left out first if the terminal is too narrow for all.
    """

    heading: str
    text: Callable[[VersionActivity], str]
    rank: int


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "show live what a server does: models, rates, latencies, queues and devices"
    parser = commands.add_parser("top", help=summary, description=summary)
    parser.set_defaults(run=run)
    add_connection_flag(parser, "--metrics", _metrics_url, _DEFAULT_URL, "URL of the server's metrics")
    parser.add_argument(
        "--interval-s",
        type=partial(positive_number, what="seconds"),
        default=DEFAULT_INTERVAL_S,
        help=f"seconds between two readings of the metrics (default: {DEFAULT_INTERVAL_S:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the activity of the server until Ctrl-C; without a terminal, print that of one interval.

    Raises:
        Unavailable: the metrics cannot be read. A terminal shows this error instead if they could be read before.
    """
    try:
        import prometheus_client  # noqa: F401 - `read_page` uses it
    except ImportError:
        raise SystemExit(f"headwaiter-client: top needs prometheus-client: {INSTALL_EXTRA}") from None
    screen = console()
    server = _Server(arguments.metrics)
    if sys.stdout.isatty() and not screen.is_dumb_terminal:
        _show(screen, server, arguments.interval_s)
    else:
        time.sleep(arguments.interval_s)
        screen.size = _WIDTH_WITHOUT_TERMINAL, screen.height
        screen.print(_view(screen, server.activity(), time.time()))
    return 0


class _Server:
    """A server whose metrics are read repeatedly.

    Raises:
        Unavailable: the metrics cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._read_s, self._reading = self._read()

    def activity(self) -> ServerActivity:
        """Return what the server did since its metrics were read last.

        Raises:
            Unavailable: the metrics cannot be read.
        """
        read_s, reading = self._read()
        try:
            result = activity(self._reading, reading, read_s - self._read_s)
        except ValueError as error:
            raise self._unreadable(error) from error
        self._read_s, self._reading = read_s, reading
        return result

    def _read(self) -> tuple[float, Reading]:
        try:
            with urlopen(self.url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - the flag takes http and https only
                page: bytes = reply.read(_MAX_PAGE_BYTES + 1)
            if len(page) > _MAX_PAGE_BYTES:
                raise ValueError(f"it has more than {_MAX_PAGE_BYTES >> 20} MiB")
            return time.monotonic(), read_page(page.decode())
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> Unavailable:
        reason = printable(_reason(error))
        return Unavailable(f"the metrics at {self.url} cannot be read ({reason}): check --metrics and the server's log")


def _reason(error: Exception) -> str:
    """Return why a page cannot be read, without the number of the error; another program may have written the text."""
    if isinstance(error, HTTPError):
        return f"status {error.code}"
    cause = getattr(error, "reason", error)  # The cause of a URLError.
    return getattr(cause, "strerror", None) or str(cause)


def _show(screen: "Console", server: _Server, interval_s: float) -> None:
    """Show the activity until Ctrl-C, and leave the last view on the terminal."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown: RenderableType = Text(f"{server.url}: the first rates follow in {interval_s:g} s")
    latest, since = shown, ""
    with suppress(KeyboardInterrupt), Live(shown, console=screen, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                shown = latest = _view(screen, server.activity(), time.time())
                since = ""
            except Unavailable as error:
                since = since or _clock(time.time())
                shown = Group(Text(f"no answer since {since}: {error}", _PROBLEM), latest)
            live.update(shown, refresh=True)
    screen.print(shown)


def _view(screen: "Console", server: ServerActivity, read_unix_s: float) -> "Group":
    """Return the view of an activity that ended at a time, in seconds since 1970."""
    from rich.console import Group
    from rich.text import Text

    name_width = int(screen.width * _NAME_SHARE)
    return Group(
        *map(Text, _server_lines(server, read_unix_s)),
        *map(Text, _device_lines(server, name_width)),
        *(Text(line, _PROBLEM) for line in _error_lines(server, name_width)),
        Text(),
        _table(screen, server.versions, name_width),
    )


def _server_lines(server: ServerActivity, read_unix_s: float) -> Iterator[str]:
    """Yield the lines about the whole server."""
    uptime_s = read_unix_s - server.started_unix_s
    facts = [
        f"headwaiter {server.build}",
        *([] if isnan(uptime_s) else [f"up {timedelta(seconds=max(0, int(uptime_s)))}"]),
        *([f"{server.front_ends} front ends"] if server.front_ends else []),
        f"{server.in_progress:,} requests in progress",
    ]
    yield ", ".join(facts)
    states = Counter(chain.from_iterable(version.states for version in server.versions))
    versions = ", ".join(f"{number} {state}" for state, number in states.items()) or "none"
    yield f"rates of {server.seconds:.1f} s until {_clock(read_unix_s)}; versions: {versions}"
    yield f"refused/s: {_rates(server.refused_per_s)}"


def _device_lines(server: ServerActivity, name_width: int) -> Iterator[str]:
    """Yield a line for each device, and for the memory of each GPU."""
    for device, shares in server.device_shares.items():
        models = [f"{share:.0%} {_cut(model, name_width)} {version}" for (model, version), share in shares.items()]
        yield f"device {device}: {sum(shares.values()):.0%} busy" + (f" ({', '.join(models)})" if models else "")
    for gpu, total_bytes in server.gpu_memory_total_bytes.items():
        used_bytes = server.gpu_memory_used_bytes.get(gpu, 0.0)
        yield f"GPU {gpu}: {used_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB of memory in use"


def _error_lines(server: ServerActivity, name_width: int) -> Iterator[str]:
    """Yield a line for requests that failed before their model was found, and one for each version with errors."""
    if server.errors_without_model_per_s:
        yield f"errors/s without a model: {_rates(server.errors_without_model_per_s)}"
    for version in server.versions:
        if version.errors_per_s:
            name = _cut(version.model, name_width)
            yield f"errors/s of {name} {version.version}: {_rates(version.errors_per_s)}"


def _rates(per_s: Mapping[str, float]) -> str:
    """Return rates with their names, the largest first."""
    largest_first = sorted(per_s.items(), key=lambda item: -item[1])
    return ", ".join(f"{_number(rate)} {name}" for name, rate in largest_first) or "none"


def _table(screen: "Console", versions: Sequence[VersionActivity], name_width: int) -> "Table":
    """Return a table with a row for each version, and with as many columns as the screen has room for."""
    columns = list(_COLUMNS)
    while True:
        table = _table_of(columns, versions, name_width)
        width = screen.measure(table, options=screen.options.update(width=_WIDTH_WITHOUT_TERMINAL)).maximum
        if width <= screen.width or not columns:
            return table
        columns.remove(max(columns, key=lambda column: column.rank))


def _table_of(columns: Sequence[_Column], versions: Sequence[VersionActivity], name_width: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model, version", no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for version in versions:
        name = Text(f"{_cut(version.model, name_width)} {version.version}")
        if version.states != ["ready"]:
            name.append(f" {', '.join(version.states)}", _PROBLEM if "failed" in version.states else "")
        table.add_row(name, *(column.text(version) for column in columns))
    return table


def _cut(name: str, width: int) -> str:
    """Return a name that takes at most some columns of the terminal."""
    from rich.text import Text

    text = Text(name)
    text.truncate(width, overflow="ellipsis")
    return text.plain


def _number(number: float) -> str:
    """Return a number with two to four digits; a dash for NaN."""
    if isnan(number):
        return "-"
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < 1e6 else f"{number / 1e6:,.1f}M"


def _duration(seconds: float) -> str:
    """Return a duration in milliseconds or seconds; a dash for NaN."""
    if isnan(seconds):
        return "-"
    if seconds >= 0.9995:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:.{1 if 0 < seconds < 0.00995 else 0}f} ms"


def _percent(share: float) -> str:
    return "-" if isnan(share) else f"{share:.0%}"


def _clock(unix_s: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def _metrics_url(text: str) -> str:
    """Return the URL of a metrics page; a URL without a path gets the path of the page.

    Raises:
        ArgumentTypeError, ValueError: the text is not a URL of HTTP.
    """
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as {_DEFAULT_URL}")
    return url._replace(path="/metrics").geturl() if url.path in ("", "/") else text


# The order is that of the screen.
_COLUMNS = (
    _Column("requests\n/s", lambda each: _number(each.requests_per_s), 1),
    _Column("errors\n/s", lambda each: _number(sum(each.errors_per_s.values())), 4),
    _Column("\np50", lambda each: _duration(each.p50_s), 2),
    _Column("\np99", lambda each: _duration(each.p99_s), 3),
    _Column("time in\nqueue", lambda each: _percent(each.stage_shares.get("queue", nan)), 5),
    _Column("time in\ncompute", lambda each: _percent(each.stage_shares.get("compute", nan)), 9),
    _Column("queued\nseqs", lambda each: _number(each.queue_sequences), 11),
    _Column("queued\ntokens", lambda each: _number(each.queue_tokens), 7),
    _Column("\nwait", lambda each: _duration(each.estimated_wait_s), 8),
    _Column("tokens\n/s", lambda each: _number(each.tokens_per_s), 10),
    _Column("batch\nseqs", lambda each: _number(each.batch_sequences), 12),
    _Column("batch\ntokens", lambda each: _number(each.batch_tokens), 13),
    _Column("\npadding", lambda each: _percent(each.padding), 14),
    _Column("device\nshare", lambda each: _percent(each.device_share), 6),
)
