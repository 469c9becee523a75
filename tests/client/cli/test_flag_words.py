"""The errors of the command name flags, where those of the client and of the server name arguments and fields."""

from pathlib import Path

import pytest

from headwaiter_client import (
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Starting,
    Unauthenticated,
)
from headwaiter_client.cli.shared_flags import with_flag
from tests.client.cli.conftest import Command, EncodeJob


@pytest.mark.parametrize(
    ("arguments", "flag", "value"),
    [
        (["probe", "--address", "nowhere"], "address", "'nowhere'"),
        (["probe", "--address", "a:1,b"], "address", "'b'"),
        (["probe", "--token-file", "EMPTY"], "token", "empty"),
        (["probe", "--tls-ca", "EMPTY"], "ca: ", "CERTIFICATE"),
        (["models", "--address", "localhost:1"], "address", "Connection refused"),
        (["probe", "--address", "localhost:1"], "address", "Connection refused"),
        (["bench", "TEXTS", "--address", "localhost:1"], "address", "localhost:1"),
    ],
)
def test_an_error_of_the_connection_names_what_the_flag_sets(
    six_texts: Path, tmp_path: Path, command: Command, arguments: list[str], flag: str, value: str
) -> None:
    (tmp_path / "EMPTY").touch()
    files = {"EMPTY": tmp_path / "EMPTY", "TEXTS": six_texts}
    error = command.refusal(*(files.get(each, each) for each in arguments))
    assert flag in error
    assert value in error


def test_a_report_of_missed_deadlines_names_the_flag(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    late = DeadlineExceeded("a reworded message about 0.3 s")
    monkeypatch.setattr("time.sleep", lambda _: job.fake.errors.clear())
    job.fake.errors.append(late)
    assert job.run() == 0
    assert f"--timeout-s: {late}" in job.error


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("arguments", "flag", "value"),
    [
        (["encode", "TEXTS", "-o", "OUT", "--prompt", "title"], "--prompt", "'title'"),
        (["encode", "TEXTS", "-o", "OUT", "--prompt", "\udcff"], "--prompt", "not Unicode"),
        (["encode", "TEXTS", "-o", "OUT", "--dimensions", "9"], "--dimensions", "9"),
        (["attend", "a", "--query", "a", "--layer", "9"], "--layer", "9"),
        (["attend", "a", "--query", "a", "--head", "9"], "--head", "9"),
    ],
)
def test_an_error_of_an_option_names_the_flag(
    six_texts: Path, tmp_path: Path, command: Command, arguments: list[str], flag: str, value: str
) -> None:
    files = {"TEXTS": six_texts, "OUT": tmp_path / "out.npy"}
    error = command.refusal(*(files.get(each, each) for each in arguments))
    assert flag in error
    assert value in error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (InvalidInput("output.dimensions is 9", field="output.dimensions"), "--dimensions is 9"),
        (InvalidInput("texts.prompt: unknown", field="texts.prompt"), "--prompt: unknown"),
        (InvalidInput("reworded: 9", field="output.dimensions"), "--dimensions: reworded: 9"),
        (InvalidInput("layers_of it", field="layers"), "--layer: layers_of it"),
        (ModelNotFound("no such model", field="model"), "--model: no such model"),
        (Starting("wait", field="model"), "wait"),
        (InvalidInput("wrong", field="tokens.data"), "wrong"),
        (InvalidInput("wrong"), "wrong"),
        (Unauthenticated("no"), "--token-file: no"),
        (DeadlineExceeded("late"), "--timeout-s: late"),
        (HeadwaiterError("has a fault", sequence=3), "sequence 3 has a fault"),
        (ValueError("wrong"), "wrong"),
    ],
)
def test_the_flag_comes_from_the_facts_of_an_error_and_not_from_its_message(error: Exception, shown: str) -> None:
    assert with_flag(error) == shown
