"""Flags, errors and dependencies that all subcommands share."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import trustme

from headwaiter_client import ModelNotFound
from tests.client.cli.conftest import Command, ReusableFake
from tests.support.client.fake_server import FakeServer
from tests.support.documents import COMMANDS


def test_flags_can_be_given_as_environment_variables(
    server: FakeServer, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n", "utf-8-sig")  # With a byte-order mark.
    monkeypatch.setenv("HEADWAITER_CLIENT_TIMEOUT_S", "5000")
    monkeypatch.setenv("HEADWAITER_CLIENT_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("HEADWAITER_CLIENT_TLS_CA", "")  # Compose passes a variable that is not set as empty.
    assert command.run("probe") == 0
    assert server.metadata["authorization"] == "Bearer s3cret"
    assert server.remaining_s > 4000
    # A flag overrides its variable.
    assert command.run("probe", "--address", "localhost:1") == 1


@pytest.mark.parametrize("name", ["encode", "similar", "attend", "bench"])
def test_a_command_calls_the_model_that_its_flag_names(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def require_name(name: str) -> None:
        """Answer as a server of several models that has no default model."""
        if name != "fake":
            raise ModelNotFound(f"no model {name!r}")

    monkeypatch.setattr(fake, "_check_model", require_name)
    commands: dict[str, list[object]] = {
        "encode": [six_texts, "-o", tmp_path / "out.npy", "--overwrite"],
        "similar": ["text", six_texts],
        "attend": ["a text", "--query", "text"],
        "bench": [six_texts, "--requests", "2"],
    }
    arguments = commands[name]
    assert command.run(name, *arguments, "--model", "fake") == 0
    for flags, model in (["--model", "other"], "'other'"), ([], "''"):
        assert command.run(name, *arguments, *flags) == 1
        assert f"no model {model}" in command.printed + command.error


def test_with_several_addresses_a_replica_that_is_down_is_skipped(server: FakeServer, command: Command) -> None:
    assert command.run("models", "--address", f"127.0.0.1:1,{server.address}") == 0
    assert "tiny" in command.printed


@pytest.mark.parametrize(("flag", "missing"), [("--tls-cert", "key"), ("--tls-key", "cert")])
def test_a_client_certificate_and_its_key_need_each_other(
    server: FakeServer, command: Command, flag: str, missing: str
) -> None:
    error = command.refusal("probe", flag, "client.pem")
    assert error.startswith(f"{flag.removeprefix('--tls-')} ")
    assert f"without {missing}" in error
    assert server.metadata == {}


def test_each_flag_of_tls_turns_tls_on(
    server: FakeServer, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    # The fake server has no TLS.
    for flags in (["--tls-ca", tmp_path / "ca.pem"], ["--tls"]):
        assert command.refusal("probe", *flags).startswith(f"the server at {server.address} is not ready: ")
    for variable, status in (("1", 1), ("0", 0)):
        monkeypatch.setenv("HEADWAITER_CLIENT_TLS", variable)
        assert command.run("probe") == status


def test_the_error_for_a_missing_file_names_the_file(tmp_path: Path, command: Command) -> None:
    missing = tmp_path / "token"
    assert command.refusal("probe", "--token-file", missing).startswith(f"{missing}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "texts", "-o", "out.npy"],
        ["similar", "a", "texts"],
        ["models"],
        ["attend", "a", "--query", "a"],
        ["bench", "texts"],
    ],
)
def test_commands_that_print_tables_name_the_missing_extra(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, command: Command, arguments: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SystemExit, match="needs rich") as refused:
        command.run(*arguments)
    assert server.requests == []
    (advice,) = re.findall("pip install '[^']+'", str(refused.value))
    assert advice in COMMANDS.read_text()


@pytest.mark.usefixtures("server")
def test_output_for_programs_needs_no_extra(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    for arguments in (["probe"], ["models", "--json"]):
        assert command.run(*arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "flag", "value"),
    [
        *((["bench", "texts"], "--requests", value) for value in ("0", "many")),
        *((["bench", "texts"], "--rate", value) for value in ("0", "fast")),
        *((["bench", "texts"], "--timeout-s", value) for value in ("0", "inf", "soon")),
        *((["attend", "a", "--query", "a"], flag, "-1") for flag in ("--layer", "--head")),
        *((["playground"], "--port", value) for value in ("99999", "-1", "9" * 5000, "x")),
        *((["top"], "--metrics", url) for url in ("localhost:9464", "file:///etc/passwd", "http://", "http://[::1")),
    ],
)
def test_a_flag_with_an_impossible_value_is_wrong_usage(
    command: Command, arguments: list[str], flag: str, value: str
) -> None:
    error = command.wrong_usage(*arguments, flag, value)
    assert f"argument {flag}: " in error
    assert repr(value) in error


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str], command: Command) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.run("--version")
    assert capsys.readouterr().out == f"headwaiter-client {version('headwaiter')}\n"
