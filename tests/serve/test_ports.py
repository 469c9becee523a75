"""A port that another process has is told before the export."""

import socket
from collections.abc import Iterator

import pytest

from headwaiter_serve.ports import PortInUse, check_ports
from headwaiter_server.settings.flags import read_settings

pytestmark = pytest.mark.usefixtures("starts_processes")

FREE = ("--address", "127.0.0.1:0", "--metrics-port", "0")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--address", "127.0.0.1:{}"),
        ("--address", "0.0.0.0:{}"),
        ("--metrics-port", "{}"),
        ("--http-address", "127.0.0.1:{}"),
    ],
)
def test_the_flag_of_a_port_in_use_is_named(flag: str, value: str, port: int) -> None:
    check_ports(read_settings(["model", *FREE], {}))
    settings = read_settings(["model", *FREE, flag, value.format(port)], {})
    with pytest.raises(PortInUse, match=f"{flag} {value.format(port)}"):
        check_ports(settings)


def test_a_host_that_only_the_server_may_know_is_left_to_it() -> None:
    check_ports(read_settings(["model", *FREE, "--address", "192.0.2.1:50051"], {}))
