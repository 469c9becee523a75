"""The lines of the log: text or JSON, one line for each record, whatever callers send."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from typing import Any

import pytest

from headwaiter_server.log_lines import BoundedHandler, JsonFormatter, configure_logging


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(written: io.StringIO) -> logging.Logger:
    """Return a logger that writes JSON, and that pytest does not know: pytest-xdist cannot send lone surrogates."""
    logger, handler = logging.Logger("tests.json"), BoundedHandler(written)
    handler.setFormatter(JsonFormatter("front end 2"))
    logger.addHandler(handler)
    return logger


def objects(written: io.StringIO) -> list[dict[str, Any]]:
    """Return the object of each line, and check that a strict parser would take the text."""
    written.getvalue().encode()
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_an_object_has_the_time_in_utc_the_level_the_message_the_logger_and_the_process(
    log: logging.Logger, written: io.StringIO
) -> None:
    before = datetime.now(UTC)
    log.warning("the disk has %d bytes", 7)
    (line,) = objects(written)
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
def test_any_text_of_a_caller_is_valid_json_on_one_line(text: str, log: logging.Logger, written: io.StringIO) -> None:
    log.info("%s", text, extra={"request": {"request_id": text, "code": "OK", "stages": {"queue": 0.5}}})
    (line,) = objects(written)
    assert line["stages"] == {"queue": 0.5}
    for name in ("message", "request_id"):
        # The text, or half of a surrogate pair as an escape that is visible.
        assert line[name] == text.encode(errors="backslashreplace").decode()
        line[name].encode()


def test_a_long_message_is_cut_and_is_still_valid_json(log: logging.Logger, written: io.StringIO) -> None:
    log.info("%s", '\\"\n' * 2000)
    (line,) = objects(written)
    assert len(line["message"]) < 2100
    assert "characters left out" in line["message"]


def test_a_traceback_is_a_field_of_the_same_line(log: logging.Logger, written: io.StringIO) -> None:
    try:
        raise ValueError("a\nb\ud800")
    except ValueError:
        log.exception("the step failed")
    (line,) = objects(written)
    assert line["message"] == "the step failed"
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert "ValueError: a\nb" in line["traceback"]


def test_left_out_lines_are_counted_in_an_object(log: logging.Logger, written: io.StringIO) -> None:
    for number in range(8):
        log.info("a request %d", number)
    log.handlers[0].close()
    lines = objects(written)
    assert [line["message"] for line in lines[:5]] == [f"a request {number}" for number in range(5)]
    assert lines[5]["message"].startswith("3 more lines")


@contextmanager
def configured(written: io.StringIO, *arguments: str) -> Iterator[logging.Logger]:
    """Yield a logger of the server, which writes to `written` in place of pytest's handlers."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    server = logging.getLogger("headwaiter_server")
    root.handlers[:] = []
    try:
        with redirect_stderr(written):
            configure_logging(*arguments)
        yield server
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
@pytest.mark.parametrize(
    ("log_format", "process", "name"),
    [("json", "", "server"), ("json", "front end 1", "front end 1"), ("text", "", "")],
)
def test_the_level_and_the_form_are_those_of_the_flags(
    level: str, levels: list[str], log_format: str, process: str, name: str, written: io.StringIO
) -> None:
    with configured(written, log_format, level, process) as server:
        logging.getLogger("asyncio").debug("a line of a library")
        for each in ("DEBUG", "INFO", "WARNING", "ERROR"):
            server.log(getattr(logging, each), "said")
    if log_format == "json":
        assert [(line["level"], line["process"]) for line in objects(written)] == [(each, name) for each in levels]
    else:
        assert [line.split()[2:] for line in written.getvalue().splitlines()] == [[each, "said"] for each in levels]


def test_text_names_the_process_of_a_front_end(written: io.StringIO) -> None:
    with configured(written, "text", "info", "front end 1") as server:
        server.info("said", extra={"request": {"code": "OK"}})
    assert written.getvalue().endswith(" INFO front end 1: said\n")


def test_a_line_of_text_has_no_line_end_inside(written: io.StringIO) -> None:
    with configured(written, "text", "info") as log:
        log.warning("from %s", "10.0.0.1\n2026-01-01 ERROR forged\x1b[31m")
    assert written.getvalue().count("\n") == 1
    assert "10.0.0.1\\n2026-01-01 ERROR forged\\x1b[31m" in written.getvalue()
