"""The subcommand `probe`."""

import pytest

from headwaiter_client.cli import main
from tests.support.client.fake_server import FakeServer


def test_probe_prints_nothing_if_the_server_is_ready(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--address", server.address]) == 0
    assert capsys.readouterr() == ("", "")


def test_probe_fails_while_the_server_is_not_ready(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.serving = False
    assert main(["probe", "--address", server.address]) == 1
    output, error = capsys.readouterr()
    assert output == ""
    prefix = f"headwaiter-client: the server at {server.address} is not ready: "
    assert error.startswith(prefix)
    reason = error.removeprefix(prefix)
    assert "health check" in reason
    assert "SERVING" in reason
    assert error.count("\n") == 1


def test_probe_prints_the_reason_of_grpc_if_nothing_answers(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stop()
    assert main(["probe", "--address", server.address]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: the server at {server.address} is not ready: ")
    assert "Connection refused" in error
    assert error.count("\n") == 1
