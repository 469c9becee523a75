"""What a client cannot be made with is refused at once, in a sentence that says what would be right."""

from typing import Any

import pytest

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, RetryPolicy
from headwaiter_client.transport.connection import Connection


@pytest.mark.parametrize("key", ["", "X-Tenant", "a b", "grpc-timeout", "x-bin"])
def test_a_metadata_key_that_cannot_be_sent_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"^metadata has the key '{key}'; keys are of lower-case letters"):
        Client("localhost:1", metadata={key: "a"})


def test_a_metadata_value_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^metadata has a value for 'x-a' that is not of printable ASCII characters$"):
        Client("localhost:1", metadata={"x-a": "ü"})


@pytest.mark.parametrize("address", ["", [], None])
def test_a_client_needs_an_address(address: str | list[str] | None) -> None:
    with pytest.raises(ValueError, match=r"^address is empty: name a server as host:port, or a list of replicas$"):
        Client(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:50051",
        "localhost:abc",
        ":50051",
        " localhost:50051",
        "localhost",
        "localhost:0",
        "localhost:99999",
        "::1:50051",
        "dns:///localhost",
        "a:1,b:2",
        ["localhost:50051", ""],
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_that_makes_no_sense_is_refused(kind: Any, address: Any) -> None:
    bad = address if isinstance(address, str) else address[-1]
    with pytest.raises(ValueError, match=f"^address {bad!r} is none: a server is host:port, such as localhost:50051"):
        kind(address)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1",
        "a_b.example:65535",
        "127.0.0.1:50051",
        "[::1]:50051",
        "[fe80::1%eth0]:50051",
        "dns:///example.org:443",
        "dns://8.8.8.8/example.org:443",
        "dns:example.org:443",
        "ipv4:127.0.0.1:1,127.0.0.1:2",
        "ipv6:[::1]:50051",
        "unix:socket",
        "unix:///run/encoder:99999",
    ],
)
def test_an_address_that_grpc_takes_is_taken(address: str) -> None:
    assert Connection(address).address == address


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        *(
            ({"address": address}, TypeError, f'address is of type {name}; it must be a str, such as "localhost:50051"')
            for address, name in ((50051, "int"), (0, "int"), ([b"a:1"], "bytes"), (b"a:1", "bytes"), ({"a:1"}, "set"))
        ),
        ({"retry": 3}, TypeError, "retry is of type int; it must be a RetryPolicy"),
        ({"tls": True}, TypeError, "tls is of type bool; it must be a TlsConfig"),
        ({"token": 5}, TypeError, "token is of type int; it must be a str"),
        ({"metadata": [("x", "y")]}, TypeError, "metadata is of type list; it must be a mapping"),
        ({"metadata": {"x": 3}}, TypeError, r"metadata\['x'\] is of type int; it must be a str"),
        ({"metadata": {3: "x"}}, TypeError, "a key of metadata is of type int; it must be a str"),
        ({"max_in_flight": 2.5}, TypeError, "max_in_flight is of type float; it must be a whole number"),
        ({"timeout_s": "5"}, TypeError, "timeout_s is of type str; it must be a number of seconds"),
        ({"timeout_s": 0}, ValueError, "timeout_s is 0; it must be above 0"),
    ],
)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_what_a_client_cannot_be_made_with_is_refused(
    client: Any, arguments: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=f"^{sentence}"):
        client(**{"address": "localhost:1", **arguments})


def test_a_transport_that_has_to_be_awaited_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^transport is of type AsyncFakeEncoder, which only AsyncClient can await$"):
        Client(transport=AsyncFakeEncoder(FakeEncoder()))  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["max_attempts", "initial_backoff_s", "max_backoff_s"])
def test_a_policy_is_of_numbers(argument: str) -> None:
    with pytest.raises(TypeError, match=f"^{argument} is of type str; it must be an? "):
        RetryPolicy(**{argument: "3"})  # type: ignore[arg-type]


def test_a_transport_that_cannot_be_awaited_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^transport is of type FakeEncoder, .* AsyncFakeEncoder\(fake\) can$"):
        AsyncClient(transport=FakeEncoder())  # type: ignore[arg-type]


def test_a_connection_shows_no_secrets() -> None:
    shown = repr(Connection("localhost:1", token="s3cret", metadata={"x-key": "s3cret"}))
    assert "s3cret" not in shown
