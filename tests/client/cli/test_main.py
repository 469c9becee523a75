"""Flags, errors and dependencies that all subcommands share."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2

from headwaiter_client import ModelNotFound
from headwaiter_client.cli import main
from tests.client.cli.conftest import ReusableFake
from tests.support.client.fake_server import FakeServer
from tests.support.documents import COMMANDS


def test_flags_can_be_given_as_environment_variables(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", server.address)
    monkeypatch.setenv("HEADWAITER_CLIENT_TIMEOUT_S", "5000")
    monkeypatch.setenv("HEADWAITER_CLIENT_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("HEADWAITER_CLIENT_TLS_CA", "")  # Compose passes a variable that is not set as empty.
    assert main(["probe"]) == 0
    assert server.metadata["authorization"] == "Bearer s3cret"
    assert server.remaining_s > 4000


def test_a_token_file_may_begin_with_a_byte_order_mark(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n", "utf-8-sig")
    assert main(["probe", "--address", server.address, "--token-file", str(tmp_path / "token")]) == 0
    assert server.metadata["authorization"] == "Bearer s3cret"


def test_a_flag_overrides_its_variable(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", "localhost:1")
    assert main(["probe", "--address", server.address]) == 0


@pytest.mark.parametrize("command", ["encode", "similar", "attend", "bench"])
def test_a_command_calls_the_model_that_its_flag_names(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def require_name(name: str) -> None:
        """Answer as a server of several models that has no default model."""
        if name != "fake":
            raise ModelNotFound(f"no model {name!r}")

    monkeypatch.setattr(fake, "_check_model", require_name)
    arguments = {
        "encode": [str(six_texts), "-o", str(tmp_path / "out.npy"), "--overwrite"],
        "similar": ["text", str(six_texts)],
        "attend": ["a text", "--query", "text"],
        "bench": [str(six_texts), "--requests", "2"],
    }[command]
    assert main([command, *arguments, "--model", "fake"]) == 0
    capsys.readouterr()
    for flags, name in (["--model", "other"], "'other'"), ([], "''"):
        assert main([command, *arguments, *flags]) == 1
        assert f"no model {name}" in "".join(capsys.readouterr())


def test_with_several_addresses_a_replica_that_is_down_is_skipped(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--address", f"127.0.0.1:1,{server.address}"]) == 0
    assert "tiny" in capsys.readouterr().out


@pytest.mark.parametrize(("flag", "missing"), [("--tls-cert", "key"), ("--tls-key", "cert")])
def test_a_client_certificate_and_its_key_need_each_other(
    server: FakeServer, capsys: pytest.CaptureFixture[str], flag: str, missing: str
) -> None:
    assert main(["probe", "--address", server.address, flag, "client.pem"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {flag.removeprefix('--tls-')} ")
    assert f"without {missing}" in error
    assert server.metadata == {}


def test_a_file_of_certificates_to_trust_turns_tls_on(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    command = ["probe", "--address", server.address]
    assert main([*command, "--tls-ca", str(tmp_path / "ca.pem")]) == 1  # The fake server has no TLS.
    assert capsys.readouterr().err.startswith(f"headwaiter-client: the server at {server.address} is not ready: ")
    assert server.metadata == {}
    assert main(command) == 0
    assert server.metadata != {}


def test_tls_needs_no_file_to_trust_the_public_authorities(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["probe", "--address", server.address]
    assert main([*command, "--tls"]) == 1  # The fake server has no TLS.
    monkeypatch.setenv("HEADWAITER_CLIENT_TLS", "1")
    assert main(command) == 1
    monkeypatch.setenv("HEADWAITER_CLIENT_TLS", "0")
    assert main(command) == 0


def test_the_servers_message_is_printed_after_the_flag(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    info = error_details_pb2.ErrorInfo(reason="UNAUTHENTICATED", domain="headwaiter")
    server.refuse(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong", info)
    assert main(["models", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: --token-file: the token is wrong\n"


def test_the_error_for_a_missing_file_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "token"
    assert main(["probe", "--token-file", str(missing)]) == 1
    assert capsys.readouterr().err.startswith(f"headwaiter-client: {missing}: ")


@pytest.mark.parametrize(
    "command",
    [
        ["encode", "texts", "-o", "out.npy"],
        ["similar", "a", "texts"],
        ["models"],
        ["attend", "a", "--query", "a"],
        ["bench", "texts"],
    ],
)
def test_commands_that_print_tables_name_the_missing_extra(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SystemExit, match="needs rich") as refused:
        main([*command, "--address", server.address])
    assert server.requests == []
    (advice,) = re.findall("pip install '[^']+'", str(refused.value))
    assert advice in COMMANDS.read_text()


@pytest.mark.parametrize("command", [["probe"], ["models", "--json"]])
def test_output_for_programs_needs_no_extra(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main([*command, "--address", server.address]) == 0


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--requests", "0"),
        ("--requests", "many"),
        ("--rate", "0"),
        ("--rate", "fast"),
        ("--timeout-s", "0"),
        ("--timeout-s", "inf"),
        ("--timeout-s", "soon"),
    ],
)
def test_an_invalid_number_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "texts", flag, value])
    assert f"argument {flag}: {value!r}" in capsys.readouterr().err


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"headwaiter-client {version('headwaiter')}\n"


def test_help_shows_the_commands_and_the_choices_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    for command in ("encode", "similar", "attend", "bench", "models", "load", "unload", "playground", "probe"):
        assert f" {command} " in shown.replace("\n", " ")
    with pytest.raises(SystemExit, match="0"):
        main(["encode", "--help"])
    shown = capsys.readouterr().out
    for flag, choices in (
        ("--dtype", "{float32,float16,int8}"),
        ("--truncation", "{error,left,right}"),
        ("--priority", "{bulk,interactive}"),
    ):
        assert f"  {flag} {choices}" in shown
