"""`encode` waits for a server that does not answer now, and ends at once at an error that no wait can cure."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from headwaiter_client import (
    Client,
    DeadlineExceeded,
    FakeEncoder,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    ModelChanged,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import ReusableFake
from tests.client.fake_server import FakeServer

OnPause = Callable[[Callable[[float], None]], list[float]]


@pytest.fixture
def on_pause(monkeypatch: pytest.MonkeyPatch) -> OnPause:
    """Call a function instead of each pause of the command, and return the list of the pauses."""

    def replace(action: Callable[[float], None]) -> list[float]:
        pauses: list[float] = []

        def pause(pause_s: float) -> None:
            pauses.append(pause_s)
            action(pause_s)

        monkeypatch.setattr("time.sleep", pause)
        return pauses

    return replace


@pytest.mark.parametrize(
    "error", [DeadlineExceeded("no answer within 30 s"), Unavailable("gone"), Overloaded("full", retry_after_s=60)]
)
def test_a_job_goes_on_after_an_error_that_passes(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    on_pause: OnPause,
    capsys: pytest.CaptureFixture[str],
    error: HeadwaiterError,
) -> None:
    fake.errors_by_text["text 4"] = error
    pauses = on_pause(lambda _: fake.errors_by_text.clear())
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert pauses == [error.retry_after_s or 0.5]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), _expected(six_texts))
    printed = capsys.readouterr()
    assert printed.out.startswith("6 sentences, 24 tokens, ")
    begin, end = printed.err.splitlines()
    assert begin == f"headwaiter-client: waiting for the server: {error}"
    assert re.fullmatch(r"headwaiter-client: the server answers again after \d+ s", end)


def test_a_job_waits_for_a_server_that_is_away_from_the_start(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, on_pause: OnPause, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.serving = False

    def start(_: float) -> None:
        fake.serving = len(pauses) == 8

    pauses = on_pause(start)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert len(np.load(tmp_path / "out.npy")) == 6
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_pauses_are_short_again_once_something_got_done(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, on_pause: OnPause
) -> None:
    fake.errors_by_text["text 0"] = fake.errors_by_text["text 4"] = Unavailable("gone")

    def come_back(_: float) -> None:
        if len(pauses) in (2, 4):
            del fake.errors_by_text[min(fake.errors_by_text)]

    pauses = on_pause(come_back)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert pauses == [0.5, 1, 0.5, 1]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), _expected(six_texts))


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("bad"),
        Unauthenticated("no"),
        ModelNotFound("none"),
        InferenceFailed("failed"),
        ModelChanged("other"),
        HeadwaiterError("INTERNAL: a fault"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("text", ["text 4", None])
def test_an_error_that_no_wait_can_cure_ends_the_job_at_once(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    on_pause: OnPause,
    capsys: pytest.CaptureFixture[str],
    error: HeadwaiterError,
    text: str | None,
) -> None:
    if text:
        fake.errors_by_text[text] = error
    else:
        fake.errors.append(error)
    pauses = on_pause(lambda _: None)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {error}\n"
    assert pauses == []


def test_another_model_after_a_wait_ends_the_job_and_keeps_its_rows(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, on_pause: OnPause, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.errors_by_text["text 4"] = Unavailable("gone")

    def restart_with_another_model(_: float) -> None:
        fake.errors_by_text.clear()
        fake._model_ref.digest = "another"

    on_pause(restart_with_another_model)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 1
    assert "another" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.npy.journal", "out.npy.partial"]
    fake._model_ref.digest = Client(transport=FakeEncoder()).model().model.digest
    fake.requests.clear()
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert fake.texts == ["text 4", "text 5"]


def test_ctrl_c_during_a_wait_leaves_a_file_that_the_same_command_resumes(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, on_pause: OnPause, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.errors_by_text["text 4"] = Unavailable("gone")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    on_pause(interrupt)
    command = ["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]
    assert main(command) == 130
    assert "resume" in capsys.readouterr().err
    fake.errors_by_text.clear()
    fake.requests.clear()
    assert main(command) == 0
    assert fake.texts == ["text 4", "text 5"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), _expected(six_texts))


def test_a_terminal_shows_since_when_the_job_waits_and_why(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    on_pause: OnPause,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fake.errors_by_text["text 4"] = Unavailable("the server is starting")
    shown = ""
    sleep = time.sleep

    def wait_for_the_bar(_: float) -> None:
        nonlocal shown
        while "waiting" not in shown:
            sleep(0.05)
            shown += capsys.readouterr().err
        fake.errors_by_text.clear()

    on_pause(wait_for_the_bar)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert re.search(r"Encoding .*4/6.*waiting for the server since \d s: the server is starting", shown)
    assert "headwaiter-client: waiting" not in shown


def test_a_job_outlasts_more_refusals_than_the_client_has_retries(
    server: FakeServer, six_texts: Path, tmp_path: Path, on_pause: OnPause
) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting")
    server.refusals_left = 12
    pauses = on_pause(lambda _: None)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy"), "--address", server.address]) == 0
    assert pauses
    assert sum(isinstance(request, pb.EncodeRequest) for request in server.requests) == 1
    assert len(np.load(tmp_path / "out.npy")) == 6


@pytest.mark.parametrize(("output", "shown"), [("missing/out.npy", "missing"), (".", "folder")])
def test_an_output_path_that_cannot_be_written_is_refused_before_the_work(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, shown: str
) -> None:
    assert main(["encode", str(six_texts), "-o", str(tmp_path / output)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: ")
    assert shown in error
    assert fake.requests == []
    assert not list(tmp_path.glob("*partial"))


def _expected(file: Path) -> object:
    return Client(transport=FakeEncoder()).encode(file.read_text().splitlines()).pooled
