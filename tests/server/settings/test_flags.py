"""Every setting has a flag and an environment variable; the error for a wrong value names the flag and the value."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.settings.flags import Settings, SettingsError, flag, read_settings, variable

# For each setting, a value that is not the default: the text, and the value that is read. The file FILE and the folder
# FOLDER exist.
GIVEN = {
    "model_name": ("tiny", "tiny"),
    "models": ("FOLDER", Path("FOLDER")),
    "watch_s": ("3.5", 3.5),
    "load": ("on-demand", "on-demand"),
    "max_model_bytes": ("1000", 1000),
    "default_model": ("tiny", "tiny"),
    "model_control": ("on", "on"),
    "provider": ("cuda", "cuda"),
    "precision": ("fp16", "fp16"),
    "address": ("[::1]:0", "[::1]:0"),
    "metrics_port": ("0", 0),
    "http_address": ("0.0.0.0:0", "0.0.0.0:0"),
    "http_api": ("on", "on"),
    "http_origins": ("https://a.example,http://[::1]:3000", ("https://a.example", "http://[::1]:3000")),
    "trusted_proxies": ("10.0.0.7,fd00::/8", ("10.0.0.7", "fd00::/8")),
    "playground": ("on", "on"),
    "front_ends": ("3", 3),
    "http_timeout_s": ("1.5", 1.5),
    "threads": ("3", 3),
    "devices": ("1,0", (1, 0)),
    "max_gpu_bytes": ("4294967296", 1 << 32),
    "instances": ("2", 2),
    "token_budget": ("1024", 1024),
    "max_sequence_tokens": ("100", 100),
    "warm_up": ("off", "off"),
    "max_queue_tokens": ("70000", 70_000),
    "max_queue_s": ("2.5", 2.5),
    "max_request_sequences": ("5", 5),
    "max_request_tokens": ("600", 600),
    "max_request_bytes": ("7", 7),
    "max_calls": ("9", 9),
    "max_stream_requests": ("10", 10),
    "max_stream_bytes": ("11", 11),
    "max_stream_idle_s": ("12.5", 12.5),
    "max_connection_age_s": ("60", 60.0),
    "max_reply_bytes": ("13", 13),
    "max_attend_bytes": ("8", 8),
    "tls_cert": ("FILE", Path("FILE")),
    "tls_key": ("FILE", Path("FILE")),
    "tls_client_ca": ("FILE", Path("FILE")),
    "token_file": ("FILE", Path("FILE")),
    "admin_token_file": ("FILE", Path("FILE")),
    "drain_delay_s": ("2.5", 2.5),
    "drain_s": ("2.5", 2.5),
    "log_format": ("json", "json"),
    "log_level": ("debug", "debug"),
    "traces": ("otlp", "otlp"),
}
# The settings that must be given together with a setting.
NEEDED_SETTINGS = {
    "admin_token_file": ["model_control"],
    "http_origins": ["http_api"],
    "tls_cert": ["tls_key"],
    "tls_key": ["tls_cert"],
    "tls_client_ca": ["tls_cert", "tls_key"],
}
# A certificate, and requests over HTTP.
_HTTPS = ("b", "--tls-cert", "FILE", "--tls-key", "FILE", "--http-api", "on")
FIELDS = [field.name for field in dataclasses.fields(Settings) if field.name != "bundle"]


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("s3cret\n")
    Path("FOLDER").mkdir()


def _bundle_for(name: str) -> list[str]:
    """Return the argument that names a bundle, or a folder of models for the settings that need one."""
    if name in ("watch_s", "load", "max_model_bytes", "default_model", "model_control", "admin_token_file"):
        return ["--models", "FOLDER"]
    return [] if name == "models" else ["b"]


def test_the_table_covers_every_setting() -> None:
    assert set(GIVEN) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_can_be_given_as_a_flag_and_in_the_environment_and_not_by_an_empty_variable(name: str) -> None:
    given = {each: GIVEN[each][0] for each in (name, *NEEDED_SETTINGS.get(name, []))}
    flags = [part for each, text in given.items() for part in (flag(each), text)]
    by_flag = read_settings([*_bundle_for(name), *flags], {})
    by_variable = read_settings(_bundle_for(name), {variable(each): text for each, text in given.items()})
    expected, default = GIVEN[name][1], Settings.__dataclass_fields__[name].default
    assert getattr(by_flag, name) == getattr(by_variable, name) == expected != default
    assert read_settings(["b"], {variable(name): ""}) == Settings(bundle=Path("b"))


def test_the_bundle_is_an_argument_or_in_the_environment_and_the_argument_wins() -> None:
    assert read_settings(["b"], {}).bundle == Path("b")
    assert read_settings([], {"HEADWAITER_BUNDLE": "e"}).bundle == Path("e")
    assert read_settings(["b"], {"HEADWAITER_BUNDLE": "e"}).bundle == Path("b")


def test_what_the_command_line_serves_replaces_what_the_environment_serves() -> None:
    settings = read_settings(["--models", "FOLDER"], {"HEADWAITER_BUNDLE": "e"})
    assert (settings.bundle, settings.models) == (None, Path("FOLDER"))
    settings = read_settings(["b"], {"HEADWAITER_MODELS": "FOLDER"})
    assert (settings.bundle, settings.models) == (Path("b"), None)


def test_a_flag_wins_over_the_environment_even_if_the_variable_is_wrong() -> None:
    assert read_settings(["b", "--threads", "2"], {"HEADWAITER_THREADS": "7"}).threads == 2
    assert read_settings(["b", "--threads", "2"], {"HEADWAITER_THREADS": "many"}).threads == 2


@pytest.mark.parametrize(
    ("arguments", "http", "metrics"),
    [
        (["--address", "192.0.2.1:50051"], ("192.0.2.1", 9464), None),
        (["--metrics-port", "1"], ("0.0.0.0", 1), None),
        (["--http-address", "127.0.0.1:9464"], ("127.0.0.1", 9464), None),
        (["--http-address", "127.0.0.1:8443"], ("127.0.0.1", 8443), ("127.0.0.1", 9464)),
        (["--http-address", "[::1]:8443", "--metrics-port", "1"], ("::1", 8443), ("::1", 1)),
        # Two free ports.
        (["--http-address", "127.0.0.1:0", "--metrics-port", "0"], ("127.0.0.1", 0), ("127.0.0.1", 0)),
    ],
)
def test_metrics_have_a_port_of_their_own_if_requests_have_another_one(
    arguments: Sequence[str], http: tuple[str, int], metrics: tuple[str, int] | None
) -> None:
    settings = read_settings(["b", *arguments], {})
    assert (settings.http_host_and_port, settings.metrics_host_and_port) == (http, metrics)


def test_unknown_variables_are_ignored() -> None:
    assert read_settings(["b"], {"THREADS": "7", "HEADWAITER_NONSENSE": "1"}) == Settings(bundle=Path("b"))


@pytest.mark.parametrize(
    ("arguments", "environment", "facts"),
    [
        (["b", "--models", "FOLDER"], {}, ["headwaiter-server BUNDLE", "--models"]),
        (["b", "--watch-s", "1"], {}, ["--watch-s", "--models"]),
        (["b", "--models", "FILE"], {}, ["--models", "'FILE'", "folder"]),
        ([], {"HEADWAITER_BUNDLE": ""}, ["headwaiter-server BUNDLE", "HEADWAITER_BUNDLE", "headwaiter-export"]),
        (["b"], {"HEADWAITER_PROVIDER": "tpu"}, ["--provider", "'tpu'", "auto", "cuda", "cpu"]),
        (["b", "--precision", "int4"], {}, ["--precision", "'int4'", "auto", "fp32", "fp16", "int8"]),
        (["--models", "FOLDER", "--model-name", "tiny"], {}, ["--model-name tiny", "--models"]),
        (["b", "--http-origins", "*"], {}, ["--http-origins", "'*'", "https://"]),
        (["b", "--trusted-proxies", "*"], {}, ["--trusted-proxies", "'*'", "10.0.0.7"]),
        (["b", "--address", ":50051"], {}, ["--address", "':50051'", "HOST:PORT"]),
        (["b", "--address", "localhost:70000"], {}, ["--address", "'localhost:70000'", "HOST:PORT"]),
        (["b", "--metrics-port", "-1"], {}, ["--metrics-port", "'-1'", "port"]),
        (["b", "--metrics-port", "65536"], {}, ["--metrics-port", "'65536'", "port"]),
        (["b", "--front-ends", "-1"], {}, ["--front-ends", "'-1'", "auto", "64"]),
        (["b", "--devices", "0,0"], {}, ["--devices", "'0,0'"]),
        (["b", "--devices", "0,-1"], {}, ["--devices", "'0,-1'"]),
        (["b", "--threads", "1.5"], {}, ["--threads", "'1.5'", "0"]),
        (["b", "--token-budget", "-1"], {}, ["--token-budget", "'-1'", "0"]),
        (["b", "--max-queue-tokens", "0"], {}, ["--max-queue-tokens", "'0'", "1"]),
        (["b", "--max-request-tokens", ""], {}, ["--max-request-tokens", "''", "1"]),
        (["b", "--max-attend-bytes", "1073741825"], {}, ["--max-attend-bytes", "'1073741825'", "1073741824"]),
        (["b", "--max-attend-bytes", "0"], {}, ["--max-attend-bytes", "'0'", "1073741824"]),
        (["b", "--drain-s", "nan"], {}, ["--drain-s", "'nan'", "seconds"]),
        (["b", "--drain-s", "inf"], {}, ["--drain-s", "'inf'", "seconds"]),
        (["b", "--drain-s", "-1"], {}, ["--drain-s", "'-1'", "seconds"]),
        (["b", "--tls-cert", "NONE", "--tls-key", "FILE"], {}, ["--tls-cert", "'NONE'", "file"]),
        (["b", "--tls-cert", "FILE"], {}, ["--tls-cert", "--tls-key"]),
        (["b"], {"HEADWAITER_TLS_KEY": "FILE"}, ["--tls-cert", "--tls-key"]),
        (["b", "--tls-client-ca", "FILE"], {}, ["--tls-client-ca", "--tls-cert", "--tls-key"]),
        ([*_HTTPS], {}, ["--http-api", "--tls-cert", "--http-address", "--metrics-port 9464"]),
        ([*_HTTPS, "--http-address", "[::1]:9464"], {}, ["--tls-cert", "--http-address", "--metrics-port 9464"]),
        (["b", "--token-file", "."], {}, ["--token-file", "'.'", "file"]),
        (["b", "--max-queue-tokens", "100"], {}, ["--max-request-tokens 65536", "--max-queue-tokens 100"]),
        (["b", "--colour", "red"], {}, ["--colour red"]),
        (["b", "--threads"], {}, ["--threads"]),
    ],
)
def test_the_error_for_a_wrong_setting_names_the_flag_and_the_value_in_one_line(
    arguments: Sequence[str], environment: Mapping[str, str], facts: list[str]
) -> None:
    with pytest.raises(SettingsError) as error:
        read_settings(arguments, environment)
    message = str(error.value)
    assert [fact for fact in facts if fact not in message] == []
    assert "\n" not in message


def test_the_changed_flags_are_those_that_differ_from_their_defaults_as_on_a_command_line() -> None:
    environment = {"HEADWAITER_THREADS": "2"}
    given = ["a b", "--devices", "0,1", "--token-file", "FILE", "--drain-s", "30"]
    settings = read_settings(given, environment)
    assert settings.changed_flags() == "'a b' --threads 2 --devices 0,1 --token-file FILE"


@pytest.mark.parametrize(("front_ends", "calls"), [("auto", 11), (0, 11), (1, 11), (3, 4), (11, 1)])
def test_front_ends_divide_the_calls(front_ends: Any, calls: int) -> None:
    assert Settings(bundle=Path("bundle"), max_calls=11, front_ends=front_ends).max_front_end_calls == calls
