"""`encode` waits for a server that does not answer now, and ends at once at an error that no wait can cure."""

import fcntl
import re
import time
from collections.abc import Callable

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
from tests.client.cli.conftest import EncodeJob, be_terminal

OnPause = Callable[[Callable[[], None]], list[float]]


@pytest.fixture
def on_pause(monkeypatch: pytest.MonkeyPatch) -> OnPause:
    """Call a function instead of each pause of the command, and return the list of the pauses."""

    def replace(action: Callable[[], None]) -> list[float]:
        pauses: list[float] = []

        def pause(pause_s: float) -> None:
            pauses.append(pause_s)
            action()

        monkeypatch.setattr("time.sleep", pause)
        return pauses

    return replace


@pytest.mark.parametrize(
    "error", [DeadlineExceeded("no answer within 30 s"), Unavailable("gone"), Overloaded("full", retry_after_s=60)]
)
def test_a_job_goes_on_after_an_error_that_passes(job: EncodeJob, on_pause: OnPause, error: HeadwaiterError) -> None:
    job.fake.errors_by_text["text 4"] = error
    pauses = on_pause(job.fake.errors_by_text.clear)
    assert job.run() == 0
    assert pauses == [error.retry_after_s or 0.5]
    job.check_output()
    assert job.printed.startswith("6 sentences, 24 tokens, ")
    begin, end = job.error.splitlines()
    assert begin.startswith("headwaiter-client: waiting for the server: ")
    assert begin.endswith(str(error))
    assert re.fullmatch(r"headwaiter-client: the server answers again after \d+ s", end)


def test_a_job_waits_for_a_server_that_is_away_from_the_start(job: EncodeJob, on_pause: OnPause) -> None:
    job.fake.serving = False

    def start() -> None:
        # Another run must not begin meanwhile.
        with job.journal.open() as journal, pytest.raises(BlockingIOError):
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        job.fake.serving = len(pauses) == 8

    pauses = on_pause(start)
    assert job.run() == 0
    # The server asks for a pause of a second.
    assert pauses == [1, 1, 2, 4, 8, 15, 15, 15]
    job.check_output()
    assert len(job.error.splitlines()) == 2


def test_pauses_are_short_again_once_something_got_done(job: EncodeJob, on_pause: OnPause) -> None:
    errors = job.fake.errors_by_text
    errors["text 0"] = errors["text 4"] = Unavailable("gone")

    def come_back() -> None:
        if len(pauses) in (2, 4):
            del errors[min(errors)]

    pauses = on_pause(come_back)
    assert job.run() == 0
    assert pauses == [0.5, 1, 0.5, 1]
    job.check_output()


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
    job: EncodeJob, on_pause: OnPause, error: HeadwaiterError, text: str | None
) -> None:
    if text:
        job.fake.errors_by_text[text] = error
    else:
        job.fake.errors.append(error)
    pauses = on_pause(lambda: None)
    assert job.refusal().endswith(str(error))
    assert pauses == []


def test_another_model_after_a_wait_ends_the_job_and_keeps_its_rows(job: EncodeJob, on_pause: OnPause) -> None:
    job.fake.errors_by_text["text 4"] = Unavailable("gone")

    def restart_with_another_model() -> None:
        job.fake.errors_by_text.clear()
        job.fake._model_ref.digest = job.fake._model_ref.results_digest = "another"

    on_pause(restart_with_another_model)
    assert job.run() == 1
    assert "another" in job.error
    assert job.files == job.work_files
    model = Client(transport=FakeEncoder()).model().model
    job.fake._model_ref.digest, job.fake._model_ref.results_digest = model.digest, model.results_digest
    job.fake.requests.clear()
    assert job.run() == 0
    assert job.fake.texts == ["text 4", "text 5"]


def test_a_terminal_shows_since_when_the_job_waits_and_why(
    job: EncodeJob, on_pause: OnPause, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    be_terminal(monkeypatch)
    job.fake.errors_by_text["text 4"] = Unavailable("the server is starting")
    shown = ""
    sleep = time.sleep

    def wait_for_the_bar() -> None:
        nonlocal shown
        while "waiting" not in shown:
            sleep(0.05)
            shown += capsys.readouterr().err
        job.fake.errors_by_text.clear()

    on_pause(wait_for_the_bar)
    assert job.run() == 0
    assert re.search(r"Encoding .*4/6.*waiting for the server since \d\d:\d\d:\d\d: the server is starting", shown)
    assert "headwaiter-client: waiting" not in shown
