"""Write the log as text or as JSON, and limit the lines of each kind per second and the length of each line.

The handler applies to all loggers, so it also bounds the lines of gRPC, of asyncio and of later code. A thread writes
the lines: if the reader of the log is stuck, requests go on, and lines are left out.
"""

import json
import logging
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from threading import Condition, Thread, Timer
from typing import Any

from headwaiter_server.concurrency.rate_limit import RateLimit

FEW_LINES_PER_S = 5
# Longer than every message of the server that contains no text from a caller.
_MAX_MESSAGE_CHARACTERS = 2000
_MAX_TRACEBACK_CHARACTERS = 8000
# The log reports left-out lines at this interval; lines of the current second are reported later.
_REPORT_INTERVAL_S = 1.0
# Lines that wait for the reader of the log. They take 10 MB if each is as long as a line may be.
_MAX_WAITING_LINES = 1000
# How long the end of the process waits for the reader of the log.
_LAST_LINES_S = 1.0


def line_kind(kind: str, lines_per_s: int = FEW_LINES_PER_S) -> Mapping[str, object]:
    """Return the `extra` of a log call whose lines count as one kind; without it, each log call is a kind."""
    return {"kind": kind, "lines_per_s": lines_per_s}


def configure_logging(log_format: str, log_level: str, process: str = "") -> None:
    """Write the lines of all loggers to standard error.

    Args:
        log_format: `text` or `json`.
        log_level: the lowest level of the lines, in lower case; `debug` does not include lines of libraries.
        process: the name of this process among those of the server; empty for the process of the models.
    """
    handler = BoundedHandler(_log_file())
    handler.setFormatter(JsonFormatter(process or "server") if log_format == "json" else _TextFormatter(process))
    logging.basicConfig(level=max(logging.INFO, logging.getLevelNamesMapping()[log_level.upper()]), handlers=[handler])
    logging.getLogger("headwaiter_server").setLevel(log_level.upper())
    logging.captureWarnings(True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_calm_gone_callers)


def _calm_gone_callers(record: logging.LogRecord) -> bool:
    """Turn gRPC's error and traceback about a reply that cannot be sent into one line: the caller has gone."""
    error = record.exc_info[0] if record.exc_info else None
    # The class is not public.
    if error is not None and error.__name__ == "ExecuteBatchError":
        record.levelno, record.levelname, record.exc_info = logging.INFO, "INFO", None
        record.msg, record.args = "a caller has gone before its reply was sent", ()
    return logging.getLogger().isEnabledFor(record.levelno)


def write_last_line(line: str) -> None:
    """Write a line to standard error before the process ends; wait a second at most for the reader."""
    writer = _Writer(_log_file())
    writer.write(line)
    writer.close()


def _log_file() -> int:
    """Return the descriptor of standard error; that of a file which forgets everything, if it is closed."""
    if sys.stderr is None:
        return os.open(os.devnull, os.O_WRONLY)
    try:
        return sys.stderr.fileno()
    except OSError:  # A program has replaced `sys.stderr` by an object without a file.
        return 2


class BoundedHandler(logging.Handler):
    """Writes the first lines of each kind in a second, and later the number of lines that were left out.

    Args:
        file: the descriptor of the log.
        clock: returns the time in seconds.
    """

    def __init__(self, file: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._writer = _Writer(file)
        self._unread = 0
        self._limit = RateLimit(clock)
        self._timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or leave it out; logging calls this method with the handler's lock held."""
        self._report(self._limit.take_left_out())
        kind = getattr(record, "kind", f"{record.name}:{record.lineno}")
        if self._limit.admit(kind, getattr(record, "lines_per_s", FEW_LINES_PER_S)):
            self._write(record)
        else:
            self._report_soon()

    def close(self) -> None:
        """Report the lines that were left out, and stop."""
        with self._locked():
            self._report(self._limit.take_left_out(all_kinds=True))
            self._report_unread()
            self._writer.close()
        super().close()

    def _report_soon(self) -> None:
        """Start a timer; without it, the end of a burst would stay unreported until the next line."""
        if self._timer is None and (self._limit.has_left_out or self._unread):
            self._timer = Timer(_REPORT_INTERVAL_S, self._report_late)
            self._timer.daemon = True
            self._timer.start()

    def _report_late(self) -> None:
        with self._locked():
            self._timer = None
            self._report(self._limit.take_left_out())
            self._report_unread()
            self._report_soon()

    def _locked(self) -> AbstractContextManager[object]:
        assert self.lock is not None
        return self.lock

    def _report(self, left_out: Mapping[str, int]) -> None:
        for kind, lines in left_out.items():
            self._write(_record(f"{lines} more lines of this kind are left out: {kind}"), stands_for=lines)

    def _report_unread(self) -> None:
        """Write how many lines found the writer full, once it has room."""
        if self._unread and not self._writer.is_full:
            unread, self._unread = self._unread, 0
            self._write(_record(f"{unread} lines are left out, because the log was read too slowly"))

    def _write(self, record: logging.LogRecord, stands_for: int = 1) -> None:
        self._report_unread()
        if self._writer.is_full:
            self._unread += stands_for
            self._report_soon()
            return
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as the handlers of logging do
            self.handleError(record)


def _record(message: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.INFO, __file__, 0, message, None, None)


class _Writer:
    """Writes lines to a file in a thread of its own.

    Args:
        file: the descriptor of the file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._waiting: deque[bytes] = deque()
        self._changed = Condition()
        self._closed = False
        Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether as many lines wait as may wait."""
        return len(self._waiting) >= _MAX_WAITING_LINES

    def write(self, line: str) -> None:
        """Let the thread write a line."""
        with self._changed:
            self._waiting.append(f"{line}\n".encode(errors="backslashreplace"))
            self._changed.notify_all()

    def close(self) -> None:
        """Wait a second at most until all lines are written, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting, _LAST_LINES_S)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                line = self._waiting[0]
            with suppress(OSError):  # The log has no reader any more.
                _write_fully(self._file, line)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


def _write_fully(file: int, line: bytes) -> None:
    """Write to the descriptor itself: a stuck write to `sys.stderr` would hold a lock that the end of Python needs."""
    while line:
        try:
            line = line[os.write(file, line) :]
        except BlockingIOError:  # The process that started the server reads the log without blocking.
            writable = select.poll()
            writable.register(file, select.POLLOUT)
            writable.poll()


class _BoundedFormatter(logging.Formatter):
    """Cuts long messages and tracebacks; a message can contain an error of another library, with a caller's text."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging's method
        record.message = _on_one_line(_cut(record.message, _MAX_MESSAGE_CHARACTERS))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - overrides logging's method
        return _cut(super().formatException(ei), _MAX_TRACEBACK_CHARACTERS)


class _TextFormatter(_BoundedFormatter):
    """Writes the time, the level, the name of the process if it has one, and the message."""

    def __init__(self, process: str) -> None:
        name = f"{process}: " if process else ""
        super().__init__(f"%(asctime)s %(levelname)s {name}%(message)s")


class JsonFormatter(_BoundedFormatter):
    """Writes each record as a JSON object on one line; a record about a request also has the fields of the request.

    Args:
        process: the name of this process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")[:-6] + "Z",
            "level": record.levelname,
            "message": _cut(record.getMessage(), _MAX_MESSAGE_CHARACTERS),
            "logger": record.name,
            "process": self._process,
            **getattr(record, "request", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # Many parsers refuse half of a surrogate pair, also if it is escaped.
        valid = {
            name: _without_surrogates(value) if isinstance(value, str) else value for name, value in fields.items()
        }
        line = json.dumps(valid)
        # A pipe may mix longer lines with those of other processes.
        while len(line) >= select.PIPE_BUF:
            texts = {name: value for name, value in valid.items() if isinstance(value, str)}
            longest = max(texts, key=lambda name: len(json.dumps(texts[name])))
            valid[longest] = _cut(texts[longest], len(texts[longest]) // 2)
            line = json.dumps(valid)
        return line


def _on_one_line(text: str) -> str:
    """Return a text with escapes for line ends and control characters, which could look like further lines."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", errors="backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    """Return the text, without its middle if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"
