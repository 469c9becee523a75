"""A client refuses bad arguments when it is created."""

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, RetryPolicy
from headwaiter_client.transport.connection import Connection


@pytest.mark.parametrize("key", ["", "X-Tenant", "a b", "grpc-timeout", "x-bin"])
def test_a_metadata_key_that_headers_cannot_hold_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="metadata") as refused:
        Client("localhost:1", metadata={key: "a"})
    assert repr(key) in str(refused.value)


def test_a_metadata_value_that_headers_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="x-a"):
        Client("localhost:1", metadata={"x-a": "ü"})


@pytest.mark.parametrize("arguments", [("",), ([],), (None,), ()])
def test_a_client_without_a_transport_needs_an_address(client_class: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="address"):
        client_class(*arguments)


@pytest.mark.parametrize("option", [(), ("a",), ("a", 1, 2), (1, "a"), 1, "ab"])
def test_a_channel_option_that_is_no_pair_of_a_name_and_a_value_is_refused(client_class: Any, option: Any) -> None:
    with pytest.raises(ValueError, match="channel_options holds"):
        client_class("localhost:1", channel_options=[("grpc.keepalive_time_ms", 60_000), option])


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
def test_an_address_of_the_wrong_form_is_refused(client_class: Any, address: Any) -> None:
    bad = address if isinstance(address, str) else address[-1]
    with pytest.raises(ValueError, match="address") as refused:
        client_class(address)
    assert repr(bad) in str(refused.value)


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
def test_an_address_of_every_form_that_grpc_accepts_is_accepted(address: str) -> None:
    assert Connection(address).address == address


@pytest.mark.parametrize(
    ("arguments", "argument", "actual_type"),
    [
        *(
            ({"address": address}, "address", name)
            for address, name in ((50051, "int"), (0, "int"), ([b"a:1"], "bytes"), (b"a:1", "bytes"), ({"a:1"}, "set"))
        ),
        ({"retry": 3}, "retry", "int"),
        ({"tls": True}, "tls", "bool"),
        ({"token": 5}, "token", "int"),
        ({"metadata": [("x", "y")]}, "metadata", "list"),
        ({"metadata": {"x": 3}}, "metadata['x']", "int"),
        ({"metadata": {3: "x"}}, "a key of metadata", "int"),
        ({"max_in_flight": 2.5}, "max_in_flight", "float"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error(
    client_class: Any, arguments: dict[str, Any], argument: str, actual_type: str
) -> None:
    with pytest.raises(TypeError) as refused:
        client_class(**{"address": "localhost:1", **arguments})
    assert str(refused.value).startswith(f"{argument} ")
    assert f"type {actual_type}:" in str(refused.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_in_flight", 0),
        *(("timeout_s", value) for value in (0, -1, math.nan, math.inf, True, np.True_, "5", 10**400)),
    ],
)
def test_timeout_and_max_in_flight_must_be_finite_numbers_above_0(client_class: Any, argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=argument) as refused:
        client_class("localhost:1", **{argument: value})
    assert f" {value!r}:" in str(refused.value)


def test_a_client_refuses_the_transport_of_the_other_client() -> None:
    with pytest.raises(TypeError, match="AsyncFakeEncoder"):
        Client(transport=AsyncFakeEncoder(FakeEncoder()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=" FakeEncoder"):
        AsyncClient(transport=FakeEncoder())  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["max_attempts", "initial_backoff_s", "max_backoff_s"])
def test_a_retry_policy_consists_of_numbers(argument: str) -> None:
    with pytest.raises(TypeError, match=argument) as refused:
        RetryPolicy(**{argument: "3"})  # type: ignore[arg-type]
    assert "type str:" in str(refused.value)


def test_the_repr_of_a_connection_shows_no_secrets() -> None:
    shown = repr(Connection("localhost:1", token="s3cret", metadata={"x-key": "s3cret"}))
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("address", "shown"),
    [("localhost:1", "('localhost:1')"), (["a:1", "b:2"], "(['a:1', 'b:2'])")],
)
def test_a_client_shows_its_addresses_and_not_its_token(client_class: Any, address: Any, shown: str) -> None:
    assert repr(client_class(address, token="s3cret")) == client_class.__name__ + shown


def test_a_client_of_another_transport_shows_the_transport() -> None:
    assert repr(Client(transport=FakeEncoder())).startswith("Client(transport=<")


@pytest.mark.parametrize("copy", [pickle.dumps, deepcopy])
def test_a_client_cannot_be_pickled_or_copied(client_class: Any, copy: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TypeError, match=rf"{client_class.__name__} cannot be pickled.*: make {client_class.__name__}\("
    ):
        copy(client_class("localhost:1"))


@pytest.mark.parametrize("name", ["interceptors", "channel_options"])
def test_interceptors_and_channel_options_are_lists(client_class: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        client_class("localhost:1", **{name: object()})
