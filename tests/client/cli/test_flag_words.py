"""The errors of the command name flags, where those of the client and of the server name arguments and fields.

tests/e2e/test_error_sentences.py has the whole sentences.
"""

from pathlib import Path

import grpc
import pytest
import trustme

from headwaiter_client import (
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Starting,
    Unauthenticated,
)
from headwaiter_client.cli import main
from headwaiter_client.cli.shared_flags import with_flag
from tests.client.cli.conftest import ReusableFake
from tests.support.client.fake_server import FakeServer


@pytest.mark.parametrize(
    ("arguments", "flag", "value"),
    [
        (["probe", "--address", "nowhere"], "address", "'nowhere'"),
        (["probe", "--address", "a:1,b"], "address", "'b'"),
        (["probe", "--token-file", "EMPTY"], "token", "empty"),
        (["probe", "--tls-ca", "EMPTY"], "ca: ", "CERTIFICATE"),
        (["probe", "--tls-cert", "CERTIFICATE", "--tls-key", "EMPTY"], "key: ", "PRIVATE KEY"),
        (["probe", "--tls-cert", "EMPTY", "--tls-key", "KEY"], "cert: ", "CERTIFICATE"),
        (["probe", "--tls-cert", "CERTIFICATE", "--tls-key", "KEY"], "cert", "is not the key"),
        (["models", "--address", "localhost:1"], "address", "Connection refused"),
        (["probe", "--address", "localhost:1"], "address", "Connection refused"),
        (["bench", "TEXTS", "--address", "localhost:1"], "address", "localhost:1"),
    ],
)
def test_an_error_of_the_connection_names_what_the_flag_sets(
    six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], flag: str, value: str
) -> None:
    (tmp_path / "EMPTY").touch()
    authority = trustme.CA()
    authority.issue_cert("one").cert_chain_pems[0].write_to_path(tmp_path / "CERTIFICATE")
    authority.issue_cert("other").private_key_pem.write_to_path(tmp_path / "KEY")
    files = {"EMPTY": tmp_path / "EMPTY", "CERTIFICATE": tmp_path / "CERTIFICATE", "KEY": tmp_path / "KEY"}
    assert main([str({**files, "TEXTS": six_texts}.get(each, each)) for each in arguments]) == 1
    assert_names(capsys, flag, value)


def test_a_server_without_tls_is_named(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--address", server.address, "--tls"]) == 1
    assert_names(capsys, "tls", f"{server.address} does not speak TLS")


@pytest.mark.usefixtures("starts_processes")
def test_a_server_with_tls_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    pair = (issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())
    server = FakeServer(grpc.ssl_server_credentials([pair]))
    try:
        assert main(["models", "--address", server.address]) == 1
    finally:
        server.stop()
    assert_names(capsys, "tls", f"{server.address} speaks TLS")


def test_a_missed_deadline_names_the_flag(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.released.clear()
    assert main(["models", "--address", server.address, "--timeout-s", "0.3"]) == 1
    assert_names(capsys, "--timeout-s", "0.3")


@pytest.mark.parametrize("command", ["bench", "encode"])
def test_a_report_of_missed_deadlines_names_the_flag(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    fake.errors_by_text["text 0"] = DeadlineExceeded("a reworded message about 0.3 s")
    monkeypatch.setattr("time.sleep", lambda _: fake.errors_by_text.clear())
    if command == "bench":
        main(["bench", str(six_texts), "--requests", "1"])
    else:
        assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert_names(capsys, "--timeout-s", "0.3")


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
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    flag: str,
    value: str,
) -> None:
    files = {"TEXTS": str(six_texts), "OUT": str(tmp_path / "out.npy")}
    assert main([files.get(each, each) for each in arguments]) == 1
    assert_names(capsys, flag, value)


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
        (HeadwaiterError("has a fault", sequence=3), "sequence 3 has a fault"),
        (ValueError("wrong"), "wrong"),
    ],
)
def test_the_flag_comes_from_the_facts_of_an_error_and_not_from_its_message(error: Exception, shown: str) -> None:
    assert with_flag(error) == shown


@pytest.mark.parametrize("flag", ["--layer", "--head"])
def test_a_negative_index_is_wrong_usage(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["attend", "a", "--query", "a", flag, "-1"])
    assert f"argument {flag}: '-1'" in capsys.readouterr().err


def assert_names(capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
    printed = "".join(capsys.readouterr())
    assert flag in printed
    assert value in printed
