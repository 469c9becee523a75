"""The command `probe`."""

import pytest

from headwaiter_client.cli import main
from tests.client.fake_server import FakeServer


def test_probe_is_quiet_about_a_server_that_serves(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--address", server.address]) == 0
    assert capsys.readouterr() == ("", "")


def test_probe_fails_while_the_server_does_not_serve(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.serving = False
    assert main(["probe", "--address", server.address]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert server.address in err


def test_probe_says_what_grpc_knows_when_nothing_answers(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stop()
    assert main(["probe", "--address", server.address]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: the server at {server.address} is not ready: ")
    assert "Connection refused" in error
    assert error.count("\n") == 1
