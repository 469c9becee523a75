"""Write the log as text or as JSON, and limit the lines of each kind per second and the length of each line.

The handler applies to all loggers, so it also bounds the lines of gRPC, of asyncio and of later code.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from threading import Timer
from typing import Any, TextIO

from headwaiter_server.concurrency.rate_limit import RateLimit

FEW_LINES_PER_S = 5
# Longer than every message of the server that contains no text from a caller.
_MAX_MESSAGE_CHARACTERS = 2000
_MAX_TRACEBACK_CHARACTERS = 8000
# The log reports left-out lines at this interval; lines of the current second are reported later.
_REPORT_INTERVAL_S = 1.0


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
    handler = BoundedHandler(sys.stderr)
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


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the first lines of each kind in a second, and later the number of lines that were left out."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._limit = RateLimit(clock)
        self._timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or leave it out; logging calls this method with the handler's lock held."""
        self._report(self._limit.take_left_out())
        kind = getattr(record, "kind", f"{record.name}:{record.lineno}")
        if self._limit.admit(kind, getattr(record, "lines_per_s", FEW_LINES_PER_S)):
            super().emit(record)
        else:
            self._report_soon()

    def close(self) -> None:
        """Report the lines that were left out, and stop."""
        with self._locked():
            self._report(self._limit.take_left_out(all_kinds=True))
        super().close()

    def _report_soon(self) -> None:
        """Start a timer; without it, the end of a burst would stay unreported until the next line."""
        if self._timer is None and self._limit.has_left_out:
            self._timer = Timer(_REPORT_INTERVAL_S, self._report_late)
            self._timer.daemon = True
            self._timer.start()

    def _report_late(self) -> None:
        with self._locked():
            self._timer = None
            self._report(self._limit.take_left_out())
            self._report_soon()

    def _locked(self) -> AbstractContextManager[object]:
        assert self.lock is not None
        return self.lock

    def _report(self, left_out: Mapping[str, int]) -> None:
        for kind, lines in left_out.items():
            message = f"{lines} more lines of this kind are left out: {kind}"
            super().emit(logging.LogRecord(__name__, logging.INFO, __file__, 0, message, None, None))


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
        return json.dumps(valid)


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
