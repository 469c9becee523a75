"""The lines of the log: text or JSON, one line for each record, whatever callers send."""

import json
import logging
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.log_lines import BoundedHandler, JsonFormatter, configure_logging
from tests.support.full_pipe import full_pipe

OFTEN = {"lines_per_s": 10_000}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the file of the log."""
    return tmp_path / "log"


@pytest.fixture
def log(written: Path) -> Iterator[logging.Logger]:
    """Return a logger that writes JSON, and that pytest does not know: pytest-xdist cannot send lone surrogates."""
    with written.open("wb") as file:
        logger, handler = logging.Logger("tests.json"), BoundedHandler(file.fileno())
        handler.setFormatter(JsonFormatter("front end 2"))
        logger.addHandler(handler)
        yield logger
        handler.close()


def objects(log: logging.Logger, written: Path) -> list[dict[str, Any]]:
    """Close the log, and return the object of each line."""
    for handler in log.handlers:
        handler.close()
    return [json.loads(line) for line in written.read_text().splitlines()]


def test_an_object_has_the_time_in_utc_the_level_the_message_the_logger_and_the_process(
    log: logging.Logger, written: Path
) -> None:
    before = datetime.now(UTC)
    log.warning("the disk has %d bytes", 7)
    (line,) = objects(log, written)
    time = line.pop("time")
    assert time.endswith("Z")
    assert before <= datetime.fromisoformat(time) <= datetime.now(UTC)
    assert line == {
        "level": "WARNING",
        "message": "the disk has 7 bytes",
        "logger": "tests.json",
        "process": "front end 2",
    }


@pytest.mark.parametrize(
    "text",
    [
        '"quoted" \\ {"level": "ERROR"}',
        "line\nline\r\nline\x0bline\x0cline\x1cline\x85line\u2028line\u2029line",
        "".join(map(chr, range(0x20))) + "\x7f\x80\x9f",
        "\ud800 \udfff \udc80",
        "\U0001f600 grüße \ufeff\u202e",
    ],
    ids=["quotes", "ends of lines", "control characters", "surrogates", "other characters"],
)
def test_any_text_of_a_caller_is_valid_json_on_one_line(text: str, log: logging.Logger, written: Path) -> None:
    log.info("%s", text, extra={"request": {"request_id": text, "code": "OK", "stages": {"queue": 0.5}}})
    (line,) = objects(log, written)
    assert line["stages"] == {"queue": 0.5}
    for name in ("message", "request_id"):
        # The text, or half of a surrogate pair as an escape that is visible.
        assert line[name] == text.encode(errors="backslashreplace").decode()
        line[name].encode()


def test_a_long_message_is_cut_and_is_still_valid_json(log: logging.Logger, written: Path) -> None:
    log.info("%s", '\\"\n' * 2000)
    (line,) = objects(log, written)
    assert len(line["message"]) < 2100
    assert "characters left out" in line["message"]


def test_a_line_is_short_enough_for_a_pipe_that_processes_share(log: logging.Logger, written: Path) -> None:
    try:
        raise ValueError("\U0001f600" * 10_000)
    except ValueError:
        log.exception("%s", "\U0001f600" * 2000, extra={"request": {"request_id": "\U0001f600" * 256}})
    (line,) = objects(log, written)
    assert len(written.read_bytes()) <= select.PIPE_BUF
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert all("\U0001f600" in line[name] for name in ("message", "request_id"))


def test_left_out_lines_are_counted_in_an_object(log: logging.Logger, written: Path) -> None:
    for number in range(8):
        log.info("a request %d", number)
    lines = objects(log, written)
    assert [line["message"] for line in lines[:5]] == [f"a request {number}" for number in range(5)]
    assert lines[5]["message"].startswith("3 more lines")


@contextmanager
def configured(written: Path, *arguments: str) -> Iterator[logging.Logger]:
    """Yield a logger of the server, which writes to `written` in place of pytest's handlers."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    server = logging.getLogger("headwaiter_server")
    root.handlers[:] = []
    try:
        with written.open("w") as file, redirect_stderr(file):
            configure_logging(*arguments)
            yield server
            root.handlers[0].close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        server.setLevel(logging.NOTSET)
        logging.captureWarnings(False)


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"]),
        ("error", ["ERROR"]),
    ],
)
def test_the_level_is_that_of_the_flag(level: str, levels: list[str], written: Path) -> None:
    with configured(written, "text", level) as server:
        logging.getLogger("asyncio").debug("a line of a library")
        for each in ("DEBUG", "INFO", "WARNING", "ERROR"):
            server.log(getattr(logging, each), "said")
    assert [line.split()[2:] for line in written.read_text().splitlines()] == [[each, "said"] for each in levels]


def test_text_names_the_process_of_a_front_end(written: Path) -> None:
    with configured(written, "text", "info", "front end 1") as server:
        server.info("said", extra={"request": {"code": "OK"}})
    assert written.read_text().endswith(" INFO front end 1: said\n")


def test_a_line_of_text_has_no_line_end_inside(written: Path) -> None:
    with configured(written, "text", "info") as log:
        log.warning("from %s", "10.0.0.1\n2026-01-01 ERROR forged\x1b[31m")
    assert written.read_text().count("\n") == 1
    assert "10.0.0.1\\n2026-01-01 ERROR forged\\x1b[31m" in written.read_text()


def log_to_a_stuck_reader(line_count: int) -> tuple[int, int, logging.Logger, BoundedHandler]:
    """Write lines to a full pipe; return its reader, its writer, the logger and the handler."""
    reader, writer = full_pipe()
    log, handler = logging.Logger("tests.stuck"), BoundedHandler(writer)
    log.addHandler(handler)
    for number in range(line_count):
        log.info("line %d", number, extra=OFTEN)
    return reader, writer, log, handler


def test_a_reader_that_is_stuck_stops_nobody_and_learns_how_many_lines_are_missing() -> None:
    reader, writer, log, handler = log_to_a_stuck_reader(3000)
    with os.fdopen(reader) as lines:
        first = [next(lines) for _ in range(500)]
        while handler._writer.is_full:
            time.sleep(0.001)
        log.info("the end", extra=OFTEN)
        handler.close()
        os.close(writer)
        read = "".join([*first, *lines]).lstrip(".")
    left_out = "2000 lines are left out, because the log was read too slowly"
    assert read.splitlines() == [*(f"line {number}" for number in range(1000)), left_out, "the end"]


def test_the_number_of_missing_lines_is_written_without_a_further_line() -> None:
    reader, writer, _, handler = log_to_a_stuck_reader(1500)
    with os.fdopen(reader) as lines:
        # The handler looks once a second whether the writer has room again.
        assert [next(lines) for _ in range(1001)][-1] == (
            "500 lines are left out, because the log was read too slowly\n"
        )
    handler.close()
    os.close(writer)
