"""The subcommand `probe`."""

from tests.client.cli.conftest import Command
from tests.support.client.fake_server import FakeServer


def test_probe_prints_nothing_if_the_server_is_ready(server: FakeServer, command: Command) -> None:
    assert command.run("probe") == 0
    assert (command.printed, command.error) == ("", "")


def test_probe_says_why_the_server_is_not_ready(server: FakeServer, command: Command) -> None:
    begin = f"the server at {server.address} is not ready: "
    server.serving = False
    error = command.refusal("probe")
    assert error.startswith(begin)
    assert "health check" in error
    server.stop()
    error = command.refusal("probe")
    assert error.startswith(begin)
    assert "Connection refused" in error
