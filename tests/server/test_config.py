"""Every setting is a flag and an environment variable, and a wrong one is named in one sentence."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headwaiter_server.config import Settings, SettingsError, flag, read_settings, variable

# A value that is not the default, as text, and what it means; FILE stands for a file that exists.
GIVEN = {
    "provider": ("cuda", "cuda"),
    "precision": ("fp16", "fp16"),
    "address": ("[::1]:0", "[::1]:0"),
    "metrics_port": ("0", 0),
    "threads": ("3", 3),
    "devices": ("1,0", (1, 0)),
    "max_gpu_bytes": ("4294967296", 1 << 32),
    "instances": ("2", 2),
    "token_budget": ("1024", 1024),
    "cache_dir": ("CACHE", Path("CACHE")),
    "max_queue_tokens": ("70000", 70_000),
    "max_queue_s": ("2.5", 2.5),
    "max_request_sequences": ("5", 5),
    "max_request_tokens": ("600", 600),
    "max_request_bytes": ("7", 7),
    "max_calls": ("9", 9),
    "max_stream_requests": ("10", 10),
    "max_stream_bytes": ("11", 11),
    "max_attend_bytes": ("8", 8),
    "tls_cert": ("FILE", Path("FILE")),
    "tls_key": ("FILE", Path("FILE")),
    "tls_client_ca": ("FILE", Path("FILE")),
    "token_file": ("FILE", Path("FILE")),
    "drain_s": ("2.5", 2.5),
}
# What must be given with it.
COMPANIONS = {"tls_cert": ["tls_key"], "tls_key": ["tls_cert"], "tls_client_ca": ["tls_cert", "tls_key"]}
FIELDS = [field.name for field in dataclasses.fields(Settings) if field.name != "bundle"]


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("s3cret\n")
    Path("EMPTY").write_text("\n")


def _flags(*names: str) -> list[str]:
    return [part for name in names for part in (flag(name), GIVEN[name][0])]


def _variables(*names: str) -> dict[str, str]:
    return {variable(name): GIVEN[name][0] for name in names}


def test_every_setting_is_in_this_table() -> None:
    assert set(GIVEN) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_can_be_given_as_a_flag(name: str) -> None:
    settings = read_settings(["b", *_flags(name, *COMPANIONS.get(name, []))], {})
    assert getattr(settings, name) == GIVEN[name][1] != Settings.__dataclass_fields__[name].default


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_can_be_given_in_the_environment(name: str) -> None:
    settings = read_settings(["b"], _variables(name, *COMPANIONS.get(name, [])))
    assert getattr(settings, name) == GIVEN[name][1]


def test_the_bundle_is_an_argument_or_in_the_environment_and_the_argument_wins() -> None:
    assert read_settings(["b"], {}).bundle == Path("b")
    assert read_settings([], {"HEADWAITER_BUNDLE": "e"}).bundle == Path("e")
    assert read_settings(["b"], {"HEADWAITER_BUNDLE": "e"}).bundle == Path("b")


def test_a_flag_wins_over_the_environment_even_where_that_is_wrong() -> None:
    assert read_settings(["b", "--threads", "2"], {"HEADWAITER_THREADS": "7"}).threads == 2
    assert read_settings(["b", "--threads", "2"], {"HEADWAITER_THREADS": "many"}).threads == 2


@pytest.mark.parametrize("name", FIELDS)
def test_an_empty_variable_is_as_good_as_none(name: str) -> None:
    assert read_settings(["b"], {variable(name): ""}) == Settings(bundle=Path("b"))


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/h"}, Path("/h/.cache/headwaiter")),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, Path("/c/headwaiter")),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, Path("/h/.cache/headwaiter")),
        ({"HOME": "/h", "HEADWAITER_CACHE_DIR": "/d"}, Path("/d")),
        ({}, None),
    ],
)
def test_what_was_measured_is_kept_in_the_users_cache_unless_a_folder_is_given(
    environment: dict[str, str], folder: Path | None
) -> None:
    assert read_settings(["b"], environment).cache_dir == folder
    assert read_settings(["b", "--cache-dir", ""], environment).cache_dir is None


def test_other_variables_are_none_of_ours() -> None:
    assert read_settings(["b"], {"THREADS": "7", "HEADWAITER_NONSENSE": "1"}) == Settings(bundle=Path("b"))


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        ([], {}, "no bundle given: name its folder"),
        ([], {"HEADWAITER_BUNDLE": ""}, "no bundle given: name its folder"),
        (["b", "--provider", "tpu"], {}, "--provider 'tpu' is not auto, cuda or cpu"),
        (["b"], {"HEADWAITER_PROVIDER": "tpu"}, "--provider 'tpu' is not auto, cuda or cpu"),
        (["b", "--precision", "int4"], {}, "--precision 'int4' is not auto, fp32, fp16 or int8"),
        (["b", "--address", "50051"], {}, "--address '50051' is not HOST:PORT"),
        (["b", "--address", ":50051"], {}, "--address ':50051' is not HOST:PORT"),
        (["b", "--address", "localhost:70000"], {}, "--address 'localhost:70000' is not HOST:PORT"),
        (["b", "--metrics-port", "-1"], {}, "--metrics-port '-1' is not a port number"),
        (["b", "--metrics-port", "65536"], {}, "--metrics-port '65536' is not a port number"),
        (["b", "--threads", "1.5"], {}, "--threads '1.5' is not a whole number from 0"),
        (["b", "--token-budget", "-1"], {}, "--token-budget '-1' is not a whole number from 0"),
        (["b", "--max-queue-tokens", "0"], {}, "--max-queue-tokens '0' is not a positive number"),
        (["b", "--max-request-sequences", "x"], {}, "--max-request-sequences 'x' is not a positive number"),
        (["b", "--max-request-tokens", ""], {}, "--max-request-tokens '' is not a positive number"),
        (["b", "--max-request-bytes", "0"], {}, "--max-request-bytes '0' is not a positive number"),
        (["b", "--max-attend-bytes", "1073741825"], {}, "--max-attend-bytes '1073741825' is not a number from 1 to"),
        (["b", "--drain-s", "nan"], {}, "--drain-s 'nan' is not seconds"),
        (["b", "--drain-s", "inf"], {}, "--drain-s 'inf' is not seconds"),
        (["b", "--drain-s", "-1"], {}, "--drain-s '-1' is not seconds"),
        (["b", "--tls-cert", "NONE", "--tls-key", "FILE"], {}, "--tls-cert 'NONE' is not a file that is there"),
        (["b", "--tls-cert", "FILE"], {}, "--tls-cert and --tls-key go together"),
        (["b"], {"HEADWAITER_TLS_KEY": "FILE"}, "--tls-cert and --tls-key go together"),
        (["b", "--tls-client-ca", "FILE"], {}, "--tls-client-ca needs --tls-cert and --tls-key"),
        (["b", "--token-file", "."], {}, "--token-file '.' is not a file that is there"),
        (["b", "--max-queue-tokens", "100"], {}, "--max-request-tokens 65536 is over --max-queue-tokens 100"),
        (["b", "--colour", "red"], {}, "unrecognized arguments: --colour red"),
        (["b", "--threads"], {}, "argument --threads: expected one argument"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_the_flag(
    arguments: Sequence[str], environment: Mapping[str, str], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(sentence)) as error:
        read_settings(arguments, environment)
    assert "\n" not in str(error.value)


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read_settings(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    for field in dataclasses.fields(Settings):
        if field.name != "bundle":
            assert f"{flag(field.name)} {field.name.upper()}" in text
            assert field.default is None or f"(default {field.default})" in text


def test_the_token_is_what_the_file_holds_without_its_line_end() -> None:
    assert Settings(bundle=Path("b"), token_file=Path("FILE")).token() == "s3cret"
    assert Settings(bundle=Path("b")).token() is None


def test_an_empty_token_file_lets_nobody_in_by_mistake() -> None:
    with pytest.raises(SettingsError, match="--token-file EMPTY is empty"):
        Settings(bundle=Path("b"), token_file=Path("EMPTY")).token()


@pytest.mark.parametrize("text", ["two words", "zwölf", "two\nlines"])
def test_a_token_that_no_caller_can_send_is_refused_at_start(text: str) -> None:
    Path("ODD").write_text(text, encoding="utf-8")
    with pytest.raises(
        SettingsError, match="--token-file ODD holds what no caller can send: a token is of visible ASCII"
    ):
        Settings(bundle=Path("b"), token_file=Path("ODD")).token()


def test_a_token_file_that_is_no_text_is_named() -> None:
    Path("BINARY").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="--token-file BINARY cannot be read: "):
        Settings(bundle=Path("b"), token_file=Path("BINARY")).token()
