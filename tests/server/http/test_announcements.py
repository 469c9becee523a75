"""The log names the addresses of HTTP, and warns when strangers can send requests."""

from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.http.announcements import addresses, warnings
from headwaiter_server.settings.flags import Settings


def settings(**changed: Any) -> Settings:
    return Settings(**{"bundle": Path("bundle"), **changed})


@pytest.mark.parametrize(
    ("changed", "urls"),
    [
        ({}, []),
        ({"playground": "on"}, ["http://localhost:9/playground/"]),
        ({"http_api": "on", "address": "[::]:50051"}, ["http://localhost:9/v1"]),
        (
            {"http_api": "on", "playground": "on", "http_address": "127.0.0.1:0"},
            ["http://127.0.0.1:9/v1", "http://127.0.0.1:9/playground/"],
        ),
        ({"playground": "on", "http_address": "[::1]:0"}, ["http://[::1]:9/playground/"]),
        (
            {"playground": "on", "tls_cert": Path("c"), "tls_key": Path("k"), "http_address": "models.example:1"},
            ["https://models.example:9/playground/"],
        ),
    ],
)
def test_the_log_names_what_is_on(changed: dict[str, Any], urls: list[str]) -> None:
    assert [line.split()[-1] for line in addresses(settings(**changed), 9)] == urls


CONTROL = {"model_control": "on", "bundle": None, "models": Path("models")}


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        ({}, None),
        ({"playground": "on"}, ["--playground"]),
        ({"http_api": "on", "address": "models.example:1"}, ["--http-api"]),
        ({"http_api": "on", "playground": "on", "http_address": "192.0.2.7:1"}, ["--http-api", "--playground"]),
        (CONTROL, ["--model-control"]),
        ({**CONTROL, "address": "127.0.0.1:1"}, None),
        ({"playground": "on", "http_address": "127.0.0.1:9464"}, None),
        ({"playground": "on", "address": "[::1]:50051"}, None),
        ({"playground": "on", "http_address": "localhost:9464"}, None),
        ({"playground": "on", "token_file": Path("token")}, None),
        ({**CONTROL, "token_file": Path("token")}, ["--model-control"]),
        ({**CONTROL, "token_file": Path("token"), "admin_token_file": Path("admin")}, None),
        ({**CONTROL, "admin_token_file": Path("admin")}, None),
        (
            {
                "playground": "on",
                "http_address": "192.0.2.7:1",
                "tls_client_ca": Path("ca"),
                "tls_cert": Path("c"),
                "tls_key": Path("k"),
            },
            None,
        ),
    ],
)
def test_the_log_warns_when_strangers_can_send_requests(changed: dict[str, Any], flags: list[str] | None) -> None:
    lines = warnings(settings(**changed))
    assert len(lines) == (flags is not None)
    for line in lines:
        assert [flag for flag in ("--http-api", "--playground", "--model-control") if flag in line] == flags
