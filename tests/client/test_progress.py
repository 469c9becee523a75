"""The reports of the progress of a list."""

import re

import pytest

from headwaiter_client import FakeEncoder
from headwaiter_client.calls.progress import progress_function
from tests.support.client.client_runner import TEXTS, ClientRunner


def test_true_shows_a_line_on_standard_error(runner: ClientRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.call(FakeEncoder(), "encode", TEXTS, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    *_, last = shown.err.removesuffix("\n").split("\r")
    assert re.fullmatch(r"600 of 600 \(100%\), [\d,]+ per s", last)
    assert shown.err.endswith("\n")


def test_the_line_is_written_at_most_ten_times_a_second(
    runner: ClientRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.call(FakeEncoder(max_request_sequences=1), "encode", TEXTS[:200], progress=True)
    assert capsys.readouterr().err.count(" of ") < 30


def test_false_shows_nothing(runner: ClientRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.call(FakeEncoder(), "encode", ["a"], progress=False)
    assert capsys.readouterr() == ("", "")


def test_output_after_a_failed_call_replaces_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    report = progress_function(True)
    assert report is not None
    report(256, 600)
    assert capsys.readouterr().err.endswith(" per s\r")
