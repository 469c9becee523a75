"""Read the server's settings from flags and environment variables, and validate them.

Each field of `Settings` has a flag, --the-field, and an environment variable, HEADWAITER_THE_FIELD.
"""

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from headwaiter_server.environment import unknown_variables, usable_processors

_MIB = 1 << 20
# A Protobuf message must be smaller than 2 GiB.
_MAX_ATTEND_BYTES = 1 << 30


class SettingsError(Exception):
    """A setting is wrong. The message is one sentence that names the flag and the value."""


@dataclass(frozen=True)
class _ValueType:
    """How to read a setting's value.

    Attributes:
        read: reads a value from text; raises ValueError if the text is not valid.
        accepted: the values that are valid, in words.
    """

    read: Callable[[str], Any]
    accepted: str


def _whole_number(lowest: int, highest: float = float("inf")) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not lowest <= value <= highest:
            raise ValueError
        return value

    return read


def _read_seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _read_gpus(text: str) -> tuple[int, ...]:
    values = tuple(map(_whole_number(0), text.split(",")))
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _read_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    _PORT.read(port)
    if not host:
        raise ValueError
    return text


def _read_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError
    return path


def _one_of(*choices: str) -> _ValueType:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return _ValueType(read, f"{', '.join(choices[:-1])} or {choices[-1]}")


_NATURAL = _ValueType(_whole_number(0), "a whole number of at least 0")
_POSITIVE = _ValueType(_whole_number(1), "a whole number of at least 1")
_ATTEND_BYTES = _ValueType(_whole_number(1, _MAX_ATTEND_BYTES), f"a whole number from 1 to {_MAX_ATTEND_BYTES}")
_PORT = _ValueType(_whole_number(0, 65_535), "a port number")
_SECONDS = _ValueType(_read_seconds, "a finite number of seconds of at least 0")
_GPUS = _ValueType(_read_gpus, "different indices of GPUs, such as 0,1")
_ADDRESS = _ValueType(_read_address, "HOST:PORT")
_FILE = _ValueType(_read_file, "an existing file")
_FOLDER = _ValueType(lambda text: Path(text) if text else None, "a folder")


def _setting(default: Any, value_type: _ValueType, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"type": value_type, "help": help_text})


@dataclass(frozen=True)
class Settings:
    """The settings of a server; if 0 has a special meaning, the help of the setting says so."""

    bundle: Path
    provider: Literal["auto", "cuda", "cpu"] = _setting(
        "auto", _one_of("auto", "cuda", "cpu"), "execution provider; auto takes CUDA if it works, else the CPU"
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = _setting(
        "auto",
        _one_of("auto", "fp32", "fp16", "int8"),
        "precision of the graph; auto takes fp16 on CUDA and fp32 on the CPU; fp16 needs CUDA, int8 needs the CPU",
    )
    address: str = _setting("0.0.0.0:50051", _ADDRESS, "address for gRPC; port 0 takes a free port")
    metrics_port: int = _setting(9464, _PORT, "port for Prometheus metrics; 0 takes a free port")
    threads: int = _setting(0, _NATURAL, "CPU threads of each session; 0 divides the cores among the sessions")
    devices: tuple[int, ...] = _setting((0,), _GPUS, "indices of the GPUs to run on, for CUDA; they share one queue")
    max_gpu_bytes: int = _setting(
        0,
        _NATURAL,
        "most GPU memory in bytes for the weights and batches of one session, without inputs; 0 for no limit",
    )
    instances: int = _setting(1, _POSITIVE, "sessions on each device; each one loads the weights again")
    token_budget: int = _setting(
        0,
        _NATURAL,
        "most tokens in a batch; 0 takes the smallest number that is as fast as larger ones, measured at start-up",
    )
    cache_dir: Path | None = _setting(
        None, _FOLDER, "folder for measured batch costs; '' stores nothing; the user's cache folder if not given"
    )
    max_queue_tokens: int = _setting(262_144, _POSITIVE, "most tokens in the queue; further requests are refused")
    max_queue_s: float = _setting(
        30.0, _SECONDS, "longest estimated wait in seconds; requests that would wait longer are refused"
    )
    max_request_sequences: int = _setting(4096, _POSITIVE, "most sequences in a request")
    max_request_tokens: int = _setting(65_536, _POSITIVE, "most tokens in a request")
    max_request_bytes: int = _setting(16 * _MIB, _POSITIVE, "largest request message in bytes")
    max_calls: int = _setting(
        8192,
        _POSITIVE,
        "most calls in progress, streams included; one connection can have half of them; further calls are refused",
    )
    max_stream_requests: int = _setting(
        1024, _POSITIVE, "most requests of one stream in progress before the server stops reading the stream"
    )
    max_stream_bytes: int = _setting(
        32 * _MIB,
        _POSITIVE,
        "most bytes of one stream's requests, and of their replies, before the server stops reading the stream",
    )
    max_stream_idle_s: float = _setting(
        600.0, _SECONDS, "most seconds that a stream may have neither a request nor an answer; 0 for no limit"
    )
    max_reply_bytes: int = _setting(
        256 * _MIB,
        _POSITIVE,
        "most bytes of replies that callers have not received, counted from when a request is queued",
    )
    max_attend_bytes: int = _setting(
        64 * _MIB,
        _ATTEND_BYTES,
        "most bytes of attention weights that one Attend may compute, counting all heads of its layers",
    )
    tls_cert: Path | None = _setting(None, _FILE, "file of the server's certificate chain, PEM")
    tls_key: Path | None = _setting(None, _FILE, "file of the certificate's private key, PEM")
    tls_client_ca: Path | None = _setting(
        None, _FILE, "file of a certificate authority, PEM; clients need a certificate that it signed"
    )
    token_file: Path | None = _setting(
        None, _FILE, "file of the bearer token; calls without it are refused, except health checks"
    )
    drain_s: float = _setting(30.0, _SECONDS, "longest time in seconds to answer admitted requests after SIGTERM")

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key need each other: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key: give all three")
        if self.max_request_tokens > self.max_queue_tokens:
            raise SettingsError(
                f"--max-request-tokens {self.max_request_tokens} exceeds --max-queue-tokens {self.max_queue_tokens}, "
                "so the queue would always refuse the largest requests: lower the first or raise the second"
            )

    @property
    def threads_per_instance(self) -> int | None:
        """Return the CPU threads of one session; None lets ONNX Runtime use one per physical core.

        More threads than processors would wait for each other in every operator.
        """
        usable = usable_processors()
        if self.threads:
            return min(self.threads, usable)
        restricted = usable < (os.cpu_count() or 1)
        return max(1, usable // self.instances) if restricted or self.instances > 1 else None

    def warnings(self, environment: Mapping[str, str]) -> list[str]:
        """Return what is probably wrong with the settings or with the variables of the environment."""
        problems = unknown_variables(environment, {variable(field.name) for field in dataclasses.fields(self)})
        if self.threads > (usable := usable_processors()):
            problems.append(
                f"--threads {self.threads} exceeds the {usable} processors that this process may use: "
                f"each session has {usable} threads"
            )
        return problems

    def token(self) -> str | None:
        """Read the bearer token that calls must carry; None if calls need no token.

        Raises:
            SettingsError: the file cannot be read, or its content is not a bearer token.
        """
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"--token-file {self.token_file} cannot be read ({error}): name a text file that holds the token"
            ) from None
        if not token:
            raise SettingsError(f"--token-file {self.token_file} is empty: write the token to it")
        if not re.fullmatch("[!-~]+", token):
            raise SettingsError(
                f"--token-file {self.token_file} holds characters that HTTP headers cannot carry: use visible ASCII "
                "characters without spaces"
            )
        return token


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return "HEADWAITER_" + name.upper()


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read each setting from the command line, else from the environment; other settings have their defaults.

    Raises:
        SettingsError: a setting is wrong; the message names its flag.
    """
    given = {name: text for name, text in vars(_parser().parse_args(arguments)).items() if text is not None}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        # An empty variable counts as not set, because Docker Compose passes unset variables on as empty ones.
        text = given.get(field.name, environment.get(variable(field.name)) or None)
        if field.name == "bundle":
            if not text:
                raise SettingsError(
                    "no bundle given: run headwaiter-server BUNDLE with the folder of a bundle, or set "
                    "HEADWAITER_BUNDLE; make a bundle with headwaiter-export checkpoint FOLDER -o BUNDLE"
                )
            values["bundle"] = Path(text)
        elif text is not None:
            values[field.name] = _read_value(field, text)
    return Settings(**{"cache_dir": _user_cache(environment), **values})


def _user_cache(environment: Mapping[str, str]) -> Path | None:
    """Return Headwaiter's folder in the user's cache (XDG base directory specification); None without $HOME."""
    home = environment.get("HOME")
    caches = environment.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    return Path(caches) / "headwaiter" if caches else None


def _read_value(field: "dataclasses.Field[Any]", text: str) -> Any:
    value_type: _ValueType = field.metadata["type"]
    try:
        return value_type.read(text)
    except ValueError:
        raise SettingsError(f"{flag(field.name)} {text!r} is not valid: give {value_type.accepted}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headwaiter-server",
        description="Serve a bundle over gRPC. Each flag can be given as an environment variable, HEADWAITER_<FLAG>.",
    )
    for field in dataclasses.fields(Settings):
        if field.name == "bundle":
            parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="folder that headwaiter-export wrote")
            continue
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        default = "" if field.default is None else f" (default {shown})"
        parser.add_argument(flag(field.name), metavar=field.name.upper(), help=field.metadata["help"] + default)
    return parser
